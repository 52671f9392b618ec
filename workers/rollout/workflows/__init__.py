"""How one rollout of a task goes.

In reading order:

workflow       `Workflow`: the seam
result         `RolloutResult`: what a workflow gives back, and its checks
spans          which weights and which sampling drew which tokens, of parts that follow one another
trajectory     builds a result turn by turn
registry       every workflow by name (entry-point group `rftd.workflows`)
simple         one prompt, one response, one reward
math_workflow  the same with a system prompt that asks for think and answer tags, or for a box
attempt        `RolloutRequest`, the seam `Attempt`, and the attempt that makes rollouts one by one
together       the attempt that asks the engine once for many rollouts, where a workflow asks once
runner         `WorkflowRunner`: one attempt at one rollout, errors named by their task's row

A new workflow: one file, one line in `registry`, and tests/contract/test_workflows.py must pass.
"""
