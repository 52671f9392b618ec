"""A run of an environment through the daemon, whose engine writes down all that it draws."""

from __future__ import annotations

from pathlib import Path

from synthetic.daemon.scene import SHORT
from synthetic.worlds.agent_run import AgentRun

TASKSET = "buffer.explorer_input.taskset"


def played(address: str, **arguments: object) -> tuple[str, ...]:
    """Overrides for an experiment whose only taskset is an environment."""
    words = ", ".join(f"{name}: {argument}" for name, argument in {"max_steps": 3, **arguments}.items())
    return (
        f"{TASKSET}={{name: played, path: '{address}', workflow_args: {{{words}}}}}",
        "buffer.explorer_input.eval_tasksets=[]",
        "explorer.max_timeout=300",  # the server of an environment starts within a rollout
        "model.max_model_len=1500",
        "model.max_prompt_tokens=1200",
        "model.max_response_tokens=16",
    )


class EnvironmentRun(AgentRun):
    """An experiment with an environment as its taskset, in a folder of its own."""

    def __init__(self, folder: Path, address: str, *, steps: int = 6) -> None:
        super().__init__(folder)
        self.overrides = (
            *SHORT,
            *played(address),
            f"buffer.total_steps={steps}",
            "explorer.runner_per_model=6",
            "explorer.max_retry_times=100",
            "explorer.rollout_model.engine_type=recording",
        )
