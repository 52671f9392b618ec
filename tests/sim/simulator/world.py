"""One seed, from the submission of its experiment to the verdict on everything that happened."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

from structlog.testing import capture_logs

from rftd.daemon.run.supervisor.forking import moved
from rftd.ops.ids import SeededIds, derive
from rftd.storage.files.checkpoints import LATEST_CHECKPOINT, misses_its_folder
from rftd.streams.events import experiment as life
from rftd.streams.events.worker import WorkerLost, WorkerStarted
from rftd.streams.folds.run_state import RunState, partitions_of
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer, decode
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.fencing import FenceView, Role
from rftd.streams.log.role import as_refs
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.weights.channel import WeightsRef
from simulator.chaos import Chaos, patched
from simulator.engines import Mishaps, SimRolloutEngine, SimTrainerEngine
from simulator.file_times import FileTimes
from simulator.kinds import KINDS
from simulator.kinds.kind import Kind
from simulator.loop import SimLoop, SimProcess, StalledError
from simulator.machine import EPOCH_NS, Machine, SimClock
from simulator.network import Network
from simulator.oracles import judge, lost_in_vain
from simulator.owner import Owner
from simulator.scenario import SECONDS_TO_FINISH, Command, Scenario
from simulator.shape import make_spec

SETTLE_S = 30.0
"""After the end everything that was stopped or cut off is awake for so long, before the log is judged."""
SETTLE_UNDISTURBED_S = 5.0
FAKES = "rftd.workers.engines.fake.rollout.FakeRolloutEngine", "rftd.workers.engines.fake.trainer.FakeTrainerEngine"


FORKED_SPEC = "rftd.daemon.run.supervisor.intake.forked_spec"


def _forked_spec(parent: ExperimentSpec, _shared: Any, _overrides: Any, *, name: str, **_: Any) -> ExperimentSpec:
    """The parent's specification as it is: a world's comes from no file that could be read again with changes."""
    return moved(parent, name, str(Path(parent.job_dir).with_name(name)))


@dataclass
class Verdict:
    """What became of a world."""

    seed: int
    failures: list[str]
    """Empty: every promise was kept."""
    state: str
    virtual_s: float
    turns: int
    records: int
    trace: str
    hits: Counter[str] = field(default_factory=Counter)
    story: list[str] = field(default_factory=list)


class World:
    """Everything of one scenario; used once."""

    def __init__(self, scenario: Scenario, *, story: bool = False) -> None:
        self.scenario = scenario
        self.lines: list[str] = []
        self._tells = story
        self.root = Path(tempfile.mkdtemp(prefix=f"world-{scenario.seed}-", dir=_memory_folder()))
        self.job = self.root / "job"
        self.loop = SimLoop(scenario.seed)
        self.log = MemoryLog(scenario.faults)
        self.network = Network(self.loop, self.log, scenario.weather, seed=scenario.seed + 1)
        self.process = self.loop.process("world", "world", 2)
        self.machine = Machine(self.loop, self.network, scenario, self.tell, seed=scenario.seed)
        self.mishaps = Mishaps(scenario.seed, fail_p=scenario.fail_p, hang_p=scenario.hang_p, salted=scenario.salted)
        self.chaos = Chaos(self.loop, self.machine, scenario, self.job, self.mishaps)
        self.clock = SimClock(self.loop, 0.0)
        self.ids = SeededIds(self.clock, scenario.seed)
        self.experiment = derive(self.ids.new(), "experiment")
        self.spec = make_spec(scenario.shape, data=_data_folder(), job=self.job, seed=scenario.seed)
        self.state = RunState(self.experiment)
        """As an observer sees it who misses nothing."""
        self.fork = derive(derive(self.experiment, "fork"), "experiment")
        self.fork_state = RunState(self.fork)
        """Of its fork; empty while there is none."""
        self.owner = Owner(self)
        self.failures: list[str] = []
        self.extras: dict[str, Any] = {}
        """What kinds of faults keep of this world, by their names."""
        self._fences = FenceView()
        self._read: dict[topics.Partition, int] = {}

    def tell(self, line: str) -> None:
        """A line of the story."""
        if self._tells:
            self.lines.append(f"{self.loop.time():9.3f}  {line}")

    def run(self) -> Verdict:
        """Plays the scenario and judges it."""
        scenario, loop = self.scenario, self.loop
        longest_s = max([strike.at_s + strike.for_s for strike in scenario.strikes], default=0.0)
        limit_s = scenario.calm_s + longest_s + SECONDS_TO_FINISH
        loop.executor_delay_s = self._executor_delay_s
        SimRolloutEngine.mishaps = SimTrainerEngine.mishaps = self.mishaps
        self.mishaps.unread = self._unread
        self.mishaps.damaged = lambda weights: Path(weights.path) in self.chaos.damaged
        with ExitStack() as stack:
            stack.callback(self._leave)
            stack.enter_context(mock.patch(FAKES[0], SimRolloutEngine))
            stack.enter_context(mock.patch(FAKES[1], SimTrainerEngine))
            stack.enter_context(mock.patch(FORKED_SPEC, _forked_spec))
            times = FileTimes(self.root, lambda: EPOCH_NS + int(loop.time() * 1e9))
            times.gone = self._gone
            times.replaced = self._replaced
            stack.enter_context(times.kept())
            stack.enter_context(patched(self.chaos.point))
            for kind, plot in self._kinds():
                stack.enter_context(kind.around(self, plot))
            main = self.process.spawn(self._play())
            try:
                if not loop.run(main, limit_s=limit_s):
                    self.failures.append(f"liveness: {self.state.spine.status} after {limit_s:g} s")
                    self.failures += [f"nothing_uncaught: {what}" for what in loop.errors[:3]]
                else:
                    main.result()
                    judging = self.process.spawn(judge(self))
                    if not loop.run(judging, limit_s=loop.time() + 60.0):
                        self.failures.append("the judgement itself did not end")
                    else:
                        judging.result()
            except StalledError as error:
                self.failures.append(f"liveness: {error}")
        return self._verdict()

    def _verdict(self) -> Verdict:
        heads = self.log.tail.heads
        return Verdict(
            seed=self.scenario.seed,
            failures=self.failures,
            state=str(self.state.spine.status),
            virtual_s=self.loop.time(),
            turns=self.loop.turns,
            records=sum(mark.next_offset for mark in heads.values()),
            trace=f"{self.loop.trace & 0xFFFFFFFFFFFFFFFF:016x}",
            hits=self.chaos.hits,
            story=self.lines,
        )

    def _executor_delay_s(self, process: SimProcess) -> float:
        mean_s = self.scenario.step_s if process.role == "trainer" else 0.002
        return self.loop.random.expovariate(1.0 / mean_s)

    def _leave(self) -> None:
        self.loop.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def _kinds(self) -> Iterator[tuple[Kind, Any]]:
        """Those that this world has, each with what it draws."""
        extras = self.scenario.extras
        return ((kind, extras[kind.name]) for kind in KINDS if kind.name in extras)

    async def _play(self) -> None:
        await self._submit()
        for kind, plot in self._kinds():
            kind.begin(self, plot)
        self.machine.start_daemon()
        keeping = self.process.spawn(self.machine.keep())
        self.chaos.start(self.process)
        self.owner.begin()
        asked_s = 0.0
        while not self._ended():
            await asyncio.sleep(1.0)
            if (
                self.state.spine.status is Status.PAUSED
                and self.loop.time() > max(asked_s, self.scenario.calm_s) + 30.0
            ):
                asked_s = self.loop.time()
                self.process.spawn(self.owner.order(Command("resume", asked_s)))
        self.tell(f"the experiment is {self.state.spine.status}")
        while any(each.alive and each.stopped for each in self.loop.processes):  # noqa: ASYNC110 nobody tells
            await asyncio.sleep(1.0)
        await asyncio.sleep(self._settle_s())
        self.observe()
        keeping.cancel()

    def _settle_s(self) -> float:
        late = self.scenario.weather.slow_p > 0.0 or any(each.disturbed_s >= 0.0 for each in self.loop.processes)
        return SETTLE_S if late else SETTLE_UNDISTURBED_S

    async def _submit(self) -> None:
        writer = Writer(source="world", clock=self.clock, ids=self.ids)
        submitted = writer.draft(life.ExperimentSubmitted(spec=self.spec), experiment=self.experiment)
        await MemoryLog.append(_without_faults(self.log), [submitted])
        accepted = life.ExperimentAccepted(start=as_refs(await self.log.heads()))
        await MemoryLog.append(_without_faults(self.log), [writer.draft(accepted, experiment=self.experiment)])
        self.log.faults = self.scenario.faults

    def _ended(self) -> bool:
        self.observe()
        unborn = self.fork_state.spine.status is None
        wishes = self.owner.forking or self.owner.keeping
        return not wishes and self.over(self.state) and (unborn or self.over(self.fork_state))

    def over(self, state: RunState) -> bool:
        """True if it has ended."""
        return state.spine.status is not None and state.spine.status.ended

    def observe(self) -> None:
        """Folds what landed since the last time."""
        own, forks = partitions_of(self.experiment), partitions_of(self.fork) if self.scenario.fork_at_s else ()
        for partition in dict.fromkeys((*own, *forks)):
            if partition.stream == topics.HEARTBEATS:
                continue
            for record in self.log.stored(partition, self._read.get(partition, 0), 1 << 30):
                self._read[partition] = record.offset + 1
                decoded = decode(record)
                if self._fences.admit(partition, decoded.head, decoded.event):
                    self._watch(decoded)
                    for state in (self.state, self.fork_state):
                        if decoded.head.experiment in (None, state.experiment):
                            state.apply(decoded)
                if self._tells and decoded.head.type in TOLD and partition.stream != topics.TASKS:
                    self.lines.append(f"{self.loop.time():9.3f}    {partition}@{record.offset} {_shown(decoded)}")

    def epoch(self, role: str) -> int:
        """The epoch of a role of the experiment on its spine."""
        return self._fences.epoch(topics.partition_of(topics.EXPERIMENTS, self.experiment), Role(self.experiment, role))

    def _unread(self, weights: WeightsRef) -> None:
        """An explorer could not load weights: those that count must be there whenever somebody asks for them."""
        self.observe()
        key = weights.version, weights.generation
        for state in (self.state, self.fork_state):
            event = state.weights.published.get(key)
            if event is None or event.path != weights.path or Path(event.path) in self.chaos.damaged:
                continue
            if _is_owed(state, key):
                self.failures.append(f"readable: {weights.path} is announced, and an explorer could not load it")

    def _replaced(self, path: str) -> None:
        """A marker was written: whoever did it, what it names is there."""
        folder = Path(path).parent
        if os.path.basename(path) == LATEST_CHECKPOINT and misses_its_folder(folder):
            self.failures.append(f"marked: the marker in {folder.name} was made to name a folder that is gone")

    def _gone(self, path: str) -> None:
        """Something lost its name: announced weights that count must not, whoever did it."""
        if os.path.basename(os.path.dirname(path)) != "weights" or Path(path) in self.chaos.damaged:
            return
        self.observe()
        for state in (self.state, self.fork_state):
            for key in state.weights.standing:
                if state.weights.published[key].path == path and _is_owed(state, key):
                    self.failures.append(f"readable: {path} is announced, and was taken away")

    def _live(self, worker: UUID) -> WorkerStarted | None:
        return self.state.roster.live.get(worker) or self.fork_state.roster.live.get(worker)

    def _watch(self, decoded: Decoded) -> None:
        event = decoded.event
        if isinstance(event, WorkerLost) and (started := self._live(event.worker)) is not None:
            what = lost_in_vain(self, started, event.reason)
            self.failures += [f"lost in vain: {what}"] if what else []


def _is_owed(state: RunState, key: tuple[int, int]) -> bool:
    """True of weights that explorers may ask for: with the end of an experiment all that it published may go."""
    return state.weights.counts(*key, state.spine) and not state.spine.ended


TOLD = frozenset(
    {
        "fence",
        "generation.started",
        "step.completed",
        "checkpoint.committed",
        "checkpoint.deleted",
        "weights.retired",
        "worker.started",
        "worker.stopped",
        "worker.lost",
        "batch.planned",
        "stage.started",
        "stage.completed",
        "eval.completed",
        "experiment.started",
        "experiment.paused",
        "experiment.released",
        "experiment.resumed",
        "experiment.cancelled",
        "experiment.completed",
        "experiment.failed",
    }
)


def _shown(decoded: Decoded) -> str:
    head, event = decoded.head, decoded.event
    names = ("role", "epoch", "step", "version", "generation", "stage", "slot", "pid", "reason", "code")
    fields = " ".join(f"{name}={getattr(event, name)}" for name in names if getattr(event, name, "") not in ("", None))
    return f"{head.type} {fields} by {head.source[:22]} {f'as {head.role}/{head.epoch}' if head.role else ''}"


def _without_faults(log: MemoryLog) -> MemoryLog:
    log.faults = type(log.faults)(seed=log.faults.seed)
    return log


@cache
def _memory_folder() -> str:
    """A folder in memory where the machine has one: thousands of worlds write small files."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() else tempfile.gettempdir()


@cache
def _data_folder() -> Path:
    """Datasets that every world of this process reads."""
    folder = Path(tempfile.mkdtemp(prefix="worlds-", dir=_memory_folder()))
    # Not by atexit, which a forked worker of a pool leaves out.
    Finalize(None, shutil.rmtree, args=(folder,), kwargs={"ignore_errors": True}, exitpriority=0)
    return folder


@contextmanager
def _quiet_collection() -> Iterator[None]:
    """No garbage is collected while a world runs: it would end what a dead process left, at a time nobody chose."""
    was_enabled, hook = gc.isenabled(), sys.unraisablehook
    gc.disable()
    sys.unraisablehook = lambda _unraisable: None
    try:
        yield
    finally:
        with warnings.catch_warnings(action="ignore"), capture_logs():
            gc.collect()
        sys.unraisablehook = hook
        if was_enabled:
            gc.enable()


def play(scenario: Scenario, *, story: bool = False) -> Verdict:
    """The verdict on a scenario's world; nothing of the world is left."""
    with _quiet_collection():
        return World(scenario, story=story).run()
