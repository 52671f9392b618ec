"""Workflows: each makes rollouts of a task, from its prompt to its reward.

In reading order:

workflow       `Workflow`: the seam
result         `RolloutResult`: the result of a workflow, and its checks
trajectory     `Trajectory`: a result that is built turn by turn
registry       every workflow by name (entry-point group `rftd.workflows`)
simple         `SimpleWorkflow`: one prompt, one response, one reward
math_workflow  simple workflows whose system prompt asks for think and answer tags, or for a box
agent_program  `AgentProgramWorkflow`: a program that asks the model over HTTP
attempt        `RolloutRequest`, the seam `Attempt`, and the attempt that makes rollouts one by one
together       the attempt that asks the engine once for many rollouts, where a workflow asks once
own_tasks      the asyncio tasks and callbacks that a workflow starts: an exit of one ends its rollout, not the process
runner         `WorkflowRunner`: one attempt at one rollout, errors named by their task's row
first_prompts  the prompts that tasks begin with, for who only looks at them
threads        workflows on threads of their own, if that is asked for
orphans        work that does not end when it is cancelled
rewards/       rewards, and the scorer that calls them

A new workflow: one file, one line in `registry`, and tests/contract/test_workflows.py must pass.
"""
