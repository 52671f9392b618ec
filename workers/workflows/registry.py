"""The workflows by name; importing this module imports none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rftd.ops.errors import ConfigError, DataError
from rftd.ops.plugins import Plugins
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.workflows.rewards.registry import REWARDS
from rftd.workers.workflows.trinity.absent import check_absent

if TYPE_CHECKING:
    from rftd.workers.datasets.task import Task
    from rftd.workers.workflows.workflow import Workflow

ENVIRONMENT_WORKFLOW: Final = "environment_workflow"
"""Workflow of tasksets with an environment's address as path."""
WORKFLOWS: Final[Plugins[Workflow]] = Plugins(
    "workflow",
    group="rftd.workflows",
    table={
        "simple_workflow": "rftd.workers.workflows.simple:SimpleWorkflow",
        "math_workflow": "rftd.workers.workflows.math_workflow:MathWorkflow",
        "math_boxed_workflow": "rftd.workers.workflows.math_workflow:MathBoxedWorkflow",
        "math_rm_workflow": "rftd.workers.workflows.math_workflow:MathRmWorkflow",
        "rubric_judge_workflow": "rftd.workers.workflows.math_workflow:RubricJudgeWorkflow",
        "agent_program_workflow": "rftd.workers.workflows.agent_program:AgentProgramWorkflow",
        "agent_command_workflow": "rftd.workers.workflows.agent_command:AgentCommandWorkflow",
        "tool_call_workflow": "rftd.workers.workflows.tool_call:ToolCallWorkflow",
        "frozen_lake_workflow": "rftd.workers.workflows.frozen_lake:FrozenLakeWorkflow",
        "math_ruler_workflow": "rftd.workers.workflows.math_workflow:MathWorkflow",
        "math_trainable_ruler_workflow": "rftd.workers.workflows.trainable_ruler:TrainableRulerWorkflow",
        "raft_workflow": "rftd.workers.workflows.raft:RaftWorkflow",
        "email_search_workflow": "rftd.workers.workflows.email_search:EmailSearchWorkflow",
        "on_policy_distill_workflow": "rftd.workers.workflows.math_workflow:OnPolicyDistillWorkflow",
        "agentscope_react_workflow": "rftd.workers.workflows.agentscope.workflow:AgentScopeWorkflow",
        "agentscope_react_math_workflow": "rftd.workers.workflows.agentscope.workflow:AgentScopeMathWorkflow",
        "agentscope_v1_react_search_workflow": "rftd.workers.workflows.agentscope.workflow:AgentScopeSearchWorkflow",
        "agentscope_workflow_adapter": "rftd.workers.workflows.agentscope.workflow:AgentScopeFunctionWorkflow",
        "agentscope_workflow_adapter_v1": "rftd.workers.workflows.agentscope.workflow:AgentScopeTunerWorkflow",
        ENVIRONMENT_WORKFLOW: "rftd.workers.workflows.environments.workflow:EnvironmentWorkflow",
        # All workflows here are asynchronous; the names below are Trinity-RFT's aliases.
        "async_simple_workflow": "rftd.workers.workflows.simple:SimpleWorkflow",
        "async_math_workflow": "rftd.workers.workflows.math_workflow:MathWorkflow",
        "async_math_boxed_workflow": "rftd.workers.workflows.math_workflow:MathBoxedWorkflow",
        "async_math_rm_workflow": "rftd.workers.workflows.math_workflow:MathRmWorkflow",
        "math_eval_workflow": "rftd.workers.workflows.math_workflow:MathBoxedWorkflow",
        "async_math_eval_workflow": "rftd.workers.workflows.math_workflow:MathBoxedWorkflow",
        "on_policy_distill_math_workflow": "rftd.workers.workflows.math_workflow:MathBoxedWorkflow",
        "async_math_ruler_workflow": "rftd.workers.workflows.math_workflow:MathWorkflow",
        "as_react_workflow": "rftd.workers.workflows.agentscope.workflow:AgentScopeWorkflow",
        "agentscopev0_react_math_workflow": "rftd.workers.workflows.agentscope.workflow:AgentScopeMathWorkflow",
        "toolcall_workflow": "rftd.workers.workflows.tool_call:ToolCallWorkflow",
    },
)
"""The workflows by name."""


_RANKED: Final = ("math_ruler_workflow", "async_math_ruler_workflow")
"""Workflows whose groups are scored by the operator `ruler`."""


def group_operator(name: str) -> str:
    """Returns the operator that judges the groups of a built-in workflow; empty for a workflow without one."""
    return "ruler" if name in _RANKED else ""


def check_workflow(name: str) -> None:
    """Raises ConfigError for an unknown workflow; of Trinity-RFT's foreign simulators, with the adapter."""
    if name not in WORKFLOWS.names():
        check_absent(name)
    WORKFLOWS.check(name)


def own_reward(name: str) -> str | None:
    """Returns the default reward of a built-in workflow; None for a third-party workflow, which is not imported."""
    if not WORKFLOWS.builtin(name):
        return None
    reward: str | None = getattr(WORKFLOWS.load(name), "default_reward", None)
    return reward


def check_own_names(task: Task, spec: TasksetSpec) -> None:
    """Raises DataError if the task names an unregistered workflow or reward."""
    # The taskset's own names are checked when the experiment is accepted.
    for plugins, name, of_taskset, key in (
        (WORKFLOWS, task.workflow, spec.workflow, spec.format.workflow_key),
        (REWARDS, task.reward, spec.reward, spec.format.reward_fn_key),
    ):
        if name is None or name == of_taskset:
            continue
        try:
            plugins.check(name)
        except ConfigError as error:
            raise DataError(f"names its own under {key!r}: {error.what}", field=key or None, fix=error.fix) from None
