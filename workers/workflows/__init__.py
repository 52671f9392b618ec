"""Workflows: each runs rollouts of a task, from the prompt to the reward.

In reading order:

workflow         `Workflow`: the seam
result           `RolloutResult`: a workflow's result, and its checks
trajectory       `Trajectory`: a result built turn by turn
registry         every workflow by name (entry-point group `rftd.workflows`)
simple           `SimpleWorkflow`: one prompt, one response, one reward
math_workflow    simple workflows with system prompts for think and answer tags, or for a box
tool_call        `ToolCallWorkflow`: calls of functions, compared with those of the row
frozen_lake      `FrozenLakeWorkflow`: moves over a lake with holes
raft             `RaftWorkflow`: the best of several answers
trainable_ruler  `TrainableRulerWorkflow`: answers and their judgement by one model, each with a reward
email_search     `EmailSearchWorkflow`: questions to an inbox of SQLite, searched by calls
agent_program    `AgentProgramWorkflow`: an agent program calls the model over HTTP
agent_command    `AgentCommandWorkflow`: a command in a sandbox calls the model over HTTP
agentscope/      agents of AgentScope as commands, under Trinity-RFT's names
environments/    environments of other packages as workflows, with datasets and rewards of their own
attempt          `RolloutRequest`, the seam `Attempt`, and the attempt running rollouts one by one
batched_rollouts the attempt batching many single-turn rollouts into one request to the engine
own_tasks        asyncio tasks and callbacks of a workflow: an exit in one ends its rollout, not the process
runner           `WorkflowRunner`: one attempt at one rollout, errors named by the task's row; roles of agents
first_prompts    the first prompts of tasks, without running the tasks
threads          workflows on separate threads, if configured
orphans          work continuing after its cancellation
class_path       workflow classes of installed packages by their path
trinity/         Trinity-RFT's classes as workflows
marks            the decorators `rftd.reward` and `rftd.workflow`
source           Python text submitted with an experiment: names, checks, loading, and rewards
workflow_source  workflows and agents from such a text
sandbox/         commands in a folder, an environment and processes of their own
rewards/         rewards, and the scorer around them

A new workflow: one file, one line in `registry`, and tests/contract/test_workflows.py must pass.
"""
