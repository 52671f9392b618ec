"""Trainers of several ranks, which die within any call or between two, answer late or not at all, and drift apart."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn
from unittest import mock

import msgspec

from rftd.ops.errors import RankError, RftdError
from rftd.streams.events.experiment import ExperimentPaused
from rftd.streams.log.topics import EXPERIMENTS
from rftd.workers.engines.ranks import controller
from rftd.workers.engines.ranks.controller import RankedEngine
from rftd.workers.engines.ranks.messages import CloseCall, JoinCall, RankCall, RankDone
from rftd.workers.engines.ranks.rank_process import RankProcess
from rftd.workers.training.execution import Execution
from simulator.kinds.kind import Kind
from simulator.loop import PROCESS, SimProcess
from simulator.readings import effective

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World

TIMEOUT_S: Final = 15.0
"""The longest that a call may take."""
DELAYS_S: Final = (1.0, 5.0, 20.0)
METHODS: Final = ("look", "open", "begin_stage", "train", "train", "checksum", "snapshot", "save", "save", "load")
POLL_INTERVAL_S: Final = 0.2


class Mishap(msgspec.Struct, frozen=True):
    """What befalls a rank in the n-th call of a method, of all trainers together."""

    method: str
    nth: int
    rank: int
    how: str
    """It dies `before` it did its part, or `after` all did theirs; or its weights `drift` in it."""


class Ranks(msgspec.Struct, frozen=True):
    """The ranks of a trainer, and what becomes of them."""

    count: int
    mishaps: tuple[Mishap, ...]
    deaths_s: tuple[float, ...]
    """When a rank of whichever trainer is there dies while nobody asks it for anything."""
    late_p: float
    """Of a call: its answer takes one of `DELAYS_S`, which may be too long."""


class SimCrew:
    """Ranks in one simulated process, in place of `RankCrew`; they end with it."""

    def __init__(self, ranks: int, *, timeout_s: float, plight: Plight, **_: Any) -> None:
        self._timeout_s = timeout_s
        self._plight = plight
        self._ranks = [RankProcess(_send_nothing) for _ in range(ranks)]
        self.lost: RankError | None = None
        self.closed = False
        plight.crews[PROCESS.get()] = self

    def pids(self) -> list[int]:
        """The ranks' process ids, which nobody asks for here."""
        return list(range(len(self._ranks)))

    def call(
        self,
        calls: Sequence[RankCall] | RankCall,
        method: str,
        descriptors: Mapping[int, Sequence[int]] | None = None,
        take_part: Callable[..., None] | None = None,
    ) -> list[RankDone]:
        """Has the ranks carry out a call, one after the other, as `RankCrew.call` promises."""
        if self.lost is not None:
            raise self.lost
        if self._plight.is_late(PROCESS.get()):
            self.lose(f"a rank gave no answer to {method} within {self._timeout_s:g} s")
        mishap = self._plight.of(method, len(self._ranks))
        answers: list[RankDone] = []
        failed: list[RftdError | OSError] = []
        for rank, process in enumerate(self._ranks):
            call = calls[rank] if isinstance(calls, Sequence) else calls
            if mishap is not None and mishap.how == "before" and rank == mishap.rank:
                self.lose(f"rank {rank} was ended by SIGKILL in {method}")
            try:
                answers.append(_answered(process, call, list((descriptors or {}).get(rank, ()))))
            except (RftdError, OSError) as error:
                failed.append(error)
            if mishap is not None and mishap.how == "drift" and rank == mishap.rank:
                _drift(process)
        if failed:
            if len(failed) < len(self._ranks):
                self.lost = RankError(f"a rank failed alone in {method}: {failed[0]}")
            raise failed[0]
        if mishap is not None and mishap.how == "after":
            self.lost = RankError(f"rank {mishap.rank} was ended by SIGKILL after {method}")
        return answers

    def lose(self, what: str) -> NoReturn:
        """Ends all ranks."""
        self.differ(RankError(what, fix="nothing: the trainer is started again"))

    def differ(self, error: RankError) -> NoReturn:
        """Ends all ranks, and raises the error that says in what they differ."""
        self.lost = error
        raise error

    def close(self) -> None:
        """Has all ranks end."""
        if self.lost is None and not self.closed:
            for process in self._ranks:
                process.answer(CloseCall(), [])
        self.closed = True


class Plight:
    """What is to befall the ranks of one world."""

    def __init__(self, world: World, plot: Ranks) -> None:
        self._world, self._plot = world, plot
        self._chance = random.Random(f"late ranks {world.scenario.seed}")
        self._left = list(plot.mishaps)
        self._calls: Counter[str] = Counter()
        self._late: set[SimProcess] = set()
        self.crews: dict[SimProcess, SimCrew] = {}

    def of(self, method: str, ranks: int) -> Mishap | None:
        """The mishap of the present call, if it has one."""
        self._calls[method] += 1
        for mishap in self._left:
            if (mishap.method, mishap.nth) == (method, self._calls[method]) and self._may_happen:
                self._left.remove(mishap)
                self._world.chaos.hits[f"rank lost {mishap.how}"] += 1
                self._world.tell(f"RANK {mishap.rank} of {PROCESS.get().name}: {mishap.how} {method}")
                return msgspec.structs.replace(mishap, rank=mishap.rank % ranks)
        return None

    def delay_s(self, process: SimProcess) -> float:
        """How much longer a call of this process takes than usual."""
        if process.role != "trainer" or not self._may_happen or self._chance.random() >= self._plot.late_p:
            return 0.0
        delay_s = self._chance.choice(DELAYS_S)
        if delay_s > TIMEOUT_S:
            self._late.add(process)
            # Any thread of the process may be the one, also that on which a heartbeat reads its memory.
            process.disturbed_s = max(process.disturbed_s, self._world.loop.time())
        return delay_s

    def is_late(self, process: SimProcess) -> bool:
        """True, once, if a call of this process takes too long."""
        late = process in self._late
        self._late.discard(process)
        self._world.chaos.hits["rank late"] += late
        return late

    async def die(self, at_s: float) -> None:
        """Kills a rank of whichever trainer is there then."""
        await asyncio.sleep(at_s)
        for process, crew in self.crews.items():
            if process.running and crew.lost is None and not crew.closed and self._may_happen:
                self._world.chaos.hits["rank lost between calls"] += 1
                self._world.tell(f"RANK of {process.name} dies")
                crew.lost = RankError("a rank was ended by SIGKILL")

    @property
    def _may_happen(self) -> bool:
        return self._world.loop.time() < self._world.scenario.calm_s


class LostRanks(Kind):
    """The trainer's engine is the product's engine of ranks, over ranks that are lost: it is started again."""

    name: ClassVar[str] = "lost ranks"
    share: ClassVar[float] = 0.15
    modes: ClassVar[tuple[str, ...]] = ("swarm", "zombies")

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """What befalls them, never so often in a row that the daemon gives the trainer up."""
        mishaps = tuple(
            Mishap(
                method=chance.choice(METHODS),
                nth=chance.choice([1, 1, 2, 3, 5]),
                rank=chance.randrange(3),
                how=chance.choice(["before", "before", "after", "drift"]),
            )
            for _ in range(chance.randint(0, 3))
        )
        deaths_s = tuple(chance.uniform(0.5, min(scenario.calm_s, 20.0)) for _ in range(chance.randint(0, 2)))
        return Ranks(chance.choice([2, 3]), mishaps, deaths_s, chance.choice([0.0, 0.0, 0.02, 0.05]))

    @contextmanager
    def around(self, world: World, plot: Ranks) -> Iterator[None]:
        """Gives the experiment's trainer ranks, and each its crew."""
        plight = world.extras[self.name] = Plight(world, plot)
        arguments = {"ranks": plot.count, "rank_timeout_s": TIMEOUT_S}
        world.spec = msgspec.structs.replace(
            world.spec,
            stages=tuple(
                msgspec.structs.replace(stage, trainer=msgspec.structs.replace(stage.trainer, engine_args=arguments))
                for stage in world.spec.stages
            ),
        )
        usual_s = world.loop.executor_delay_s
        world.loop.executor_delay_s = lambda process: usual_s(process) + plight.delay_s(process)

        def crew(ranks: int, **options: Any) -> SimCrew:
            return SimCrew(ranks, plight=plight, **options)

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(controller, "RankCrew", crew))
            stack.enter_context(mock.patch.object(Execution, "watch", _watch))
            yield

    def begin(self, world: World, plot: Ranks) -> None:
        """Spawns a task for each death between calls."""
        for at_s in plot.deaths_s:
            world.process.spawn(world.extras[self.name].die(at_s))

    async def judge(self, world: World, plot: Ranks) -> list[str]:
        """No experiment pauses for a rank: its trainer is started again."""
        events = [decoded.event for decoded in effective(world, EXPERIMENTS)]
        return [
            f"the experiment was paused: {event.reason}"
            for event in events
            if isinstance(event, ExperimentPaused) and "rank" in event.reason
        ]


async def _watch(execution: Execution) -> None:
    """In place of a thread that blocks: looks at the ranks now and then."""
    while isinstance(execution.engine, RankedEngine):
        await asyncio.sleep(POLL_INTERVAL_S)
        crew: Any = execution.engine._crew
        if crew is None:
            continue
        if crew.closed:
            return
        if crew.lost is not None:
            raise crew.lost


def _answered(process: RankProcess, call: RankCall, descriptors: Collection[int]) -> RankDone:
    """A rank's answer. None of them meets the others, for which it would change this very process's variables."""
    return RankDone() if isinstance(call, JoinCall) else process.answer(call, list(descriptors))


def _drift(process: RankProcess) -> None:
    engine: Any = process._engine
    if engine is not None:
        weights = hashlib.sha256(f"{engine._state.weights} drifted".encode()).hexdigest()
        engine._state = msgspec.structs.replace(engine._state, weights=weights)


def _send_nothing(_part: object) -> None:
    raise AssertionError("a rank of this machine sends no parts")
