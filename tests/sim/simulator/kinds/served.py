"""Worlds that serve: what strangers were told of their feedback and their commits holds, whoever is killed."""

from __future__ import annotations

import random
import secrets
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock
from uuid import UUID

import msgspec

from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.experience import ExperienceProduced, RolloutFailed
from rftd.streams.events.task import TaskLeased, TasksOffered
from rftd.streams.folds.spine import Status
from rftd.workers.rollout.serving import server
from rftd.workers.rollout.serving.history import History
from simulator.clients import SimClients
from simulator.kinds.foreigners import FOREIGNER
from simulator.kinds.kind import Kind
from simulator.loop import PROCESS
from simulator.readings import effective

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World


@dataclass(frozen=True)
class Plot:
    """What a seed decides of who comes, and when their server dies."""

    strangers: int
    impatient_p: float
    deaths: tuple[tuple[str, int], ...]
    """What is on disk, by the method that wrote it, and how often it was called: nobody is told any more."""


@dataclass(frozen=True)
class Run:
    """A run as the history has it, read without the product."""

    task: str
    reward: float
    row: int | None
    place: int | None
    answers: frozenset[str]


def kept(world: World) -> Iterator[str]:
    """What was acknowledged is in the history: feedback with its answers, and no commit left a full group behind."""
    if (sim_clients := _sim_clients(world)) is None:
        return
    yield from sim_clients.told.broken[:3]
    runs = _runs(world)
    by_reward = {run.reward: run for run in runs}
    if len(by_reward) != len(runs):
        yield "two runs have one reward: feedback counts twice"
    for judged in sim_clients.told.judged:
        run = by_reward.get(judged.reward)
        if run is None or run.answers != judged.answers:
            yield f"feedback {judged.reward} for {sorted(judged.answers)} was acknowledged, and {run} is kept"
            return
    together = world.spec.stages[0].algorithm.repeat_times
    for commit in sim_clients.told.commits:
        left = Counter(by_reward[reward].task for reward in commit.known if by_reward[reward].row is None)
        if over := [task for task, count in left.items() if count >= together]:
            yield f"a commit was acknowledged, and runs of {over} are not committed"
    if sum(commit.runs for commit in sim_clients.told.commits) > sum(run.row is not None for run in runs):
        yield "more runs were said to be committed than are"


def of_its_row(world: World) -> Iterator[str]:
    """Each experience is the run at its place of its row, no run is two of them, and a batch has each once."""
    if _sim_clients(world) is None:
        return
    runs = {(run.row, run.place): run for run in _runs(world) if run.row is not None}
    rows = Counter(row for row, _ in runs)
    together = world.spec.stages[0].algorithm.repeat_times
    if sorted(rows) != list(range(len(rows))) or set(rows.values()) - {together}:
        yield f"rows of the history are {sorted(rows.items())}"
    events = [each.event for each in effective(world) if each.head.source != FOREIGNER]
    offered = max((event.rows for event in events if isinstance(event, TasksOffered)), default=0)
    if offered > len(rows):
        yield f"{offered} rows were offered, and {len(rows)} are on disk"
    leased = {event.group: event.row for event in events if isinstance(event, TaskLeased)}
    made: dict[UUID, ExperienceProduced] = {}
    for event in events:
        if isinstance(event, ExperienceProduced):
            made.setdefault(event.experience, event)
            run = runs.get((leased[event.group], event.rollout))
            if run is None or run.reward != event.reward:
                yield f"rollout {event.rollout} of row {leased[event.group]} has reward {event.reward}, not {run}"
        elif isinstance(event, RolloutFailed):
            yield f"row {leased[event.group]} was committed, and failed: {event.reason}"
    twice = [reward for reward, count in Counter(each.reward for each in made.values()).items() if count > 1]
    if twice:
        yield f"what is worth {twice} is several experiences"
    plans = {event.batch: event for event in events if isinstance(event, BatchPlanned)}
    uses = Counter(made[item.experience].reward for plan in plans.values() for item in plan.experiences)
    if repeated := [reward for reward, count in uses.items() if count > 1]:
        yield f"what is worth {repeated} is planned several times"
    wanted = {run.reward for run in runs.values() if run.row is not None and run.row < offered}
    stage = world.spec.stages[0]
    # Feedback that was kept and never acknowledged was given anew: a row more than the steps take stays in the history.
    all_fit = len(rows) <= stage.total_steps * stage.batch_size
    if world.state.spine.status is Status.COMPLETED and all_fit and (missing := wanted - set(uses)):
        yield f"what is worth {sorted(missing)} was committed, and never trained"


class Served(Kind):
    """Strangers converse with the explorers, and the experiment has nothing else to train on."""

    name: ClassVar[str] = "served"
    share: ClassVar[float] = 1.0
    modes: ClassVar[tuple[str, ...]] = ("served",)
    oracles = (kept, of_its_row)

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """A world that serves, in which servers die."""
        scenario.shape = msgspec.structs.replace(scenario.shape, serves=True, explorers=chance.choice([1, 2, 2, 3]))
        scenario.fork_at_s = None  # a fork cannot go on from what only its parent's history has
        deaths = [
            (chance.choice(["record", "judge", "commit", "commit"]), chance.choice([1, 2, 3, 5, 8]))
            for _ in range(chance.choice([0, 0, 1, 2, 3]))
        ]
        return Plot(chance.randint(1, 4), chance.choice([0.0, 0.1, 0.4]), tuple(deaths))

    def around(self, world: World, plot: Any) -> AbstractContextManager[Any]:
        """HTTP, ids and deaths of the world's own."""
        chance = random.Random(f"strangers {world.scenario.seed}")
        stage = world.spec.stages[0]
        together = stage.algorithm.repeat_times
        runs = stage.total_steps * stage.batch_size * together
        sim_clients = SimClients(world, runs=runs, together=together, impatient_p=plot.impatient_p, chance=chance)
        world.extras[self.name] = sim_clients
        stack = ExitStack()
        for name, made in (
            ("bind", sim_clients.network.bind),
            ("serving_http", sim_clients.network.serving),
            ("url_of", lambda _door: "http://127.0.0.1:8010"),
            ("logger", lambda: PROCESS.get().logger),
        ):
            stack.enter_context(mock.patch.object(server, name, made))
        stack.enter_context(mock.patch.object(secrets, "token_bytes", chance.randbytes))
        for method in ("record", "judge", "commit"):
            moments = {nth for name, nth in plot.deaths if name == method}
            dying = self._dying(world, getattr(History, method), moments)
            stack.enter_context(mock.patch.object(History, method, dying))
        return stack

    def begin(self, world: World, plot: Any) -> None:
        """The strangers come."""
        world.extras[self.name].begin(plot.strangers)

    def _dying(self, world: World, write: Any, moments: set[int]) -> Any:
        calls = 0

        def written(history: History, *given: Any) -> Any:
            nonlocal calls
            told = write(history, *given)
            calls += 1
            if calls in moments:
                world.chaos.hits[f"killed after {write.__name__}"] += 1
                world.tell(f"KILL {PROCESS.get().name} after {write.__name__}")
                PROCESS.get().kill()
            return told

        return written


def _sim_clients(world: World) -> SimClients | None:
    found = world.extras.get(Served.name)
    return found if isinstance(found, SimClients) else None


def _runs(world: World) -> list[Run]:
    taskset = world.spec.stages[0].taskset
    assert taskset is not None
    path = Path(taskset.path) / "history.db"
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as read:
        answers: dict[int, set[str]] = {}
        for number, id in read.execute("SELECT run, id FROM answers WHERE run IS NOT NULL"):
            answers.setdefault(number, set()).add(id)
        rows = read.execute("SELECT number, task, reward, row, place FROM runs")
        return [Run(task, reward, row, place, frozenset(answers[number])) for number, task, reward, row, place in rows]
