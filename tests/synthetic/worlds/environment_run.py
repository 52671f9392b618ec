"""A run of an environment through the daemon, whose engine writes down all that it draws."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil
from synthetic.daemon.scene import SHORT
from synthetic.daemon.third_party import install
from synthetic.worlds.agent_run import AgentRun

from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.task import GroupClosed

ICE = "gymnasium://FrozenLake-v1?size=12"
"""A taskset of 12 rows whose episodes have several turns."""
SHAPED = 0.5
"""Weight of an episode's return in its shaped reward."""
SLOW_OPERATOR = '''
"""An operator that is at work long enough to be killed there, and says where."""
import os
import time
from pathlib import Path

class Slow:
    def __init__(self, folder):
        self.folder = Path(folder)

    def process(self, experiences):
        mark = self.folder / str(os.getpid())
        mark.touch()
        try:
            time.sleep(0.1)
            return experiences, {"seen": float(len(experiences))}
        finally:
            mark.unlink(missing_ok=True)
'''

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


class PipelineRun(EnvironmentRun):
    """An environment whose experiences go through a pipeline of a third party's operator and five of rftd's."""

    roles = ("explorer", "pipeline", "server", "session", "sandbox", "daemon")

    def __init__(self, folder: Path, *, steps: int) -> None:
        super().__init__(folder, ICE, steps=steps)
        self.at_work = folder / "at-work"
        self.at_work.mkdir()
        install(folder, "rftd_slow", SLOW_OPERATOR, {"rftd.operators": {"slow": "rftd_slow:Slow"}})
        shaping = f"{{stats_key: return, weight: {SHAPED}}}"
        operators = (
            "invalid_reward_filter",
            "mask_response_truncated",
            "pass_rate_calculator",
            "{name: reward_filter, args: {threshold: -100}}",
            f"{{name: reward_shaping_mapper, args: {{reward_shaping_configs: [{shaping}]}}}}",
            f"{{name: slow, args: {{folder: {self.at_work}}}}}",
        )
        entries = ", ".join(entry if entry.startswith("{") else f"{{name: {entry}}}" for entry in operators)
        self.overrides += (f"data_processor.experience_pipeline.operators=[{entries}]",)

    def victims(self, role: str) -> list[psutil.Process]:
        """Processes of a role: `pipeline` is an explorer within an operator, `server` the parent of sessions."""
        if role == "pipeline":
            pids = [int(mark.name) for mark in self.at_work.iterdir()]
            for pid in pids:
                if not psutil.pid_exists(pid):
                    (self.at_work / str(pid)).unlink(missing_ok=True)
            return [process for process in psutil.process_iter() if process.pid in pids]
        if role == "sandbox":
            return self.wardens()
        commands = {command.pid: command for command in self.commands()}
        sessions, servers = [], []
        for command in commands.values():
            try:
                if "server.py" in command.cmdline():
                    (sessions if is_fork(command, commands) else servers).append(command)
            except psutil.Error:  # ended meanwhile
                continue
        return sessions if role == "session" else servers

    def judged(self) -> int:
        """Number of experiences with a verdict, each with a reward shaped once by its figure `return`."""
        produced = {event.experience: event for event in self.scene.events(ExperienceProduced)}
        count = 0
        for group in self.scene.events(GroupClosed):
            for member, verdict in zip(group.members if group.verdicts else (), group.verdicts, strict=True):
                event = produced[member.experience]
                assert verdict.reward == event.reward + SHAPED * event.metrics["return"], (event, verdict)
                count += 1
        return count


def is_fork(command: psutil.Process, commands: Mapping[int, psutil.Process]) -> bool:
    """True if the parent of a process runs the same command: a session is a fork of its server."""
    parent = commands.get(command.ppid())
    return parent is not None and parent.cmdline() == command.cmdline()
