"""A run of agents' commands through the daemon, with processes around a command to be killed, and what was drawn."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import psutil
from synthetic.daemon.scene import ENDED, EXPERIMENT, SHORT, Scene
from synthetic.daemon.third_party import install
from synthetic.docs.pages import block_named
from synthetic.until import PATIENCE_S, poll

from rftd.ops.ids import derive
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experience import ExperienceProduced
from rftd.workers.hosts.leftovers import MARK
from rftd.workers.rollout.leased import rollout_ids
from rftd.workers.workflows.sandbox.processes import NAME_VARIABLE

RECORDING = '''
"""An engine that writes down what it draws."""
import json
import os
from rftd.workers.generation.engine_definition import RolloutEngineDefinition
from rftd.workers.engines.fake.rollout import FakeArgs, FakeRolloutEngine

class Recording(FakeRolloutEngine):
    async def generate(self, request):
        drawn = await super().generate(request)
        with open(os.environ["RFTD_TEST_DRAWN"], "a") as file:
            file.write(json.dumps([str(request.id), list(drawn.tokens)]) + "\\n")
        return drawn

async def open_engine(opening):
    return Recording(opening.arguments, opening.clock)

ENGINE = RolloutEngineDefinition(arguments=FakeArgs, open=open_engine)
'''
TASKSET = "buffer.explorer_input.taskset"
ROLES = ("explorer", "agent", "sandbox", "daemon")


class AgentRun:
    """An experiment whose agents are commands, in a folder of its own."""

    roles = ROLES
    """Victims of `kill_each`, in turns."""

    def __init__(self, folder: Path, *, command: str = "[sh, agent.sh]", steps: int = 6) -> None:
        self.folder = folder
        self.agent = folder / "agent"
        self.agent.mkdir()
        (self.agent / "agent.sh").write_text(block_named("agent.sh").text)
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.drawn_at = folder / "drawn.jsonl"
        self.drawn_at.touch()
        install(folder, "rftd_recording", RECORDING, {"rftd.rollout_engines": {"recording": "rftd_recording:ENGINE"}})
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = {
            "PYTHONPATH": path,
            "RFTD_TEST_DRAWN": str(self.drawn_at),
            "TMPDIR": str(self.temporary),
            "RFTD_PASS_ENV": "PYTHONPATH RFTD_TEST_DRAWN TMPDIR",
        }
        self.scene = Scene(folder, environ=environ)
        arguments = f"{{agent_command: {command}, agent_folder: {self.agent}, answer_file: answer.txt}}"
        self.overrides = (
            *SHORT,
            f"buffer.total_steps={steps}",
            "model.max_model_len=1024",
            "model.max_prompt_tokens=900",
            "explorer.runner_per_model=6",
            "explorer.max_retry_times=100",
            f"{TASKSET}.default_workflow_type=agent_command_workflow",
            f"{TASKSET}.workflow_args={arguments}",
            "explorer.rollout_model.engine_type=recording",
        )
        self.killed: Counter[str] = Counter()

    def submit(self) -> str:
        # The client looks the engine up as well.
        sys.path.insert(0, str(self.folder))
        try:
            return self.scene.submit(EXPERIMENT, *self.overrides)
        finally:
            sys.path.remove(str(self.folder))

    def kill_each(self, name: str, kills: int, chance: random.Random) -> None:
        """Kills each role so many times, in turns, each after progress since the last kill."""
        deadline_s = time.monotonic() + PATIENCE_S * (1 + kills)
        for number in range(kills * len(self.roles)):
            role = self.roles[number % len(self.roles)]
            while not self._strike(role, name, chance):
                page = self.scene.page(name)
                assert page is None or page.experiment.summary.state not in ENDED, page
                assert time.monotonic() < deadline_s, f"no {role} to kill"
                time.sleep(0.02)
            self.killed[role] += 1
            drawn = self.drawn_at.stat().st_size
            # The page first: asking for it starts a dead daemon again, without which nothing is ever drawn.
            poll(lambda drawn=drawn: self.scene.page(name) is not None and self.drawn_at.stat().st_size > drawn)  # type: ignore[misc]

    def _strike(self, role: str, name: str, chance: random.Random) -> bool:
        if role in ("explorer", "daemon"):
            return bool(self.scene.kill(role, name))
        victims = self.victims(role)
        if not victims:
            return False
        try:
            chance.choice(victims).kill()
        except psutil.NoSuchProcess:
            return False
        return True

    def victims(self, role: str) -> list[psutil.Process]:
        """Processes of a role that is no worker's and not the daemon's."""
        return self.wardens() if role == "sandbox" else self.commands()

    def wardens(self) -> list[psutil.Process]:
        """Processes beside commands of this run."""
        found = []
        for process in psutil.process_iter():
            try:
                if (
                    process.status() != psutil.STATUS_ZOMBIE
                    and any("sandbox.forking" in word for word in process.cmdline())
                    and str(self.scene.data.root) in process.environ().get(MARK, "")
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def commands(self) -> list[psutil.Process]:
        """Processes of the commands of this run: those of sandboxes below its folder of temporary files."""
        names = {path.name for path in self.folders()}
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(NAME_VARIABLE) in names:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def folders(self) -> list[Path]:
        return list(self.temporary.glob("rftd-sandbox-*/run-*"))

    def left(self) -> list[object]:
        """Processes and folders of commands that are there now."""
        return [*self.wardens(), *self.commands(), *self.folders()]

    def check(self) -> int:
        """Number of trained experiences, each planned once, with all of its trained ids drawn by the engine."""
        drawn = defaultdict[str, list[list[int]]](list)
        for line in self.drawn_at.read_text().splitlines():
            request, tokens = json.loads(line)
            drawn[request].append(tokens)
        produced = {event.experience: event for event in self.scene.events(ExperienceProduced)}
        planned = [item.experience for batch in self.scene.events(BatchPlanned) for item in batch.experiences]
        assert len(planned) == len(set(planned))
        for experience in planned:
            event = produced[experience]
            (rollout,) = rollout_ids(event.group, [event.rollout])
            ids = event.tokens.view()[event.prompt_tokens :][event.loss_mask.view() == 1].tolist()
            answers = [drawn[str(derive(rollout, "request", number))] for number in range(event.turns)]
            # A rollout that was begun again asks under the same ids, and may be answered by newer weights.
            assert splits(ids, answers), (ids, answers)
        return len(planned)


def splits(ids: list[int], answers: list[list[list[int]]]) -> bool:
    """True if the ids are one of the first answers, followed by one of the second, and so on."""
    if not answers:
        return not ids
    return any(ids[: len(answer)] == answer and splits(ids[len(answer) :], answers[1:]) for answer in answers[0])
