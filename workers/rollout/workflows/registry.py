"""The workflows by name; importing this imports none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rftd.ops.plugins import Plugins

if TYPE_CHECKING:
    from rftd.workers.rollout.workflows.workflow import Workflow

WORKFLOWS: Final[Plugins[Workflow]] = Plugins(
    "workflow",
    group="rftd.workflows",
    table={
        "simple_workflow": "rftd.workers.rollout.workflows.simple:SimpleWorkflow",
        "math_workflow": "rftd.workers.rollout.workflows.math_workflow:MathWorkflow",
        "math_boxed_workflow": "rftd.workers.rollout.workflows.math_workflow:MathBoxedWorkflow",
        "math_rm_workflow": "rftd.workers.rollout.workflows.math_workflow:MathRmWorkflow",
        "agent_program_workflow": "rftd.workers.rollout.workflows.agent_program:AgentProgramWorkflow",
        # Every workflow of ours is asynchronous; these are the guide's other names.
        "async_simple_workflow": "rftd.workers.rollout.workflows.simple:SimpleWorkflow",
        "async_math_workflow": "rftd.workers.rollout.workflows.math_workflow:MathWorkflow",
        "async_math_boxed_workflow": "rftd.workers.rollout.workflows.math_workflow:MathBoxedWorkflow",
        "async_math_rm_workflow": "rftd.workers.rollout.workflows.math_workflow:MathRmWorkflow",
    },
)


def own_reward(name: str) -> str | None:
    """The reward that a workflow of ours has by itself; None for another one, which is not imported."""
    if not WORKFLOWS.builtin(name):
        return None
    found: str | None = getattr(WORKFLOWS.load(name), "default_reward", None)
    return found
