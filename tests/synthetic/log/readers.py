"""Whoever reads a log: each takes every record of it, and raises nothing but errors that have a name."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from synthetic.log.recorder import Recorder

from rftd.daemon.observe.metrics_feed import MetricsFeed
from rftd.daemon.observe.metrics_follower import show
from rftd.daemon.run.registry import Registry
from rftd.daemon.run.why import answer
from rftd.daemon.run.why.run_snapshot import RunSnapshot
from rftd.ops.clock import ManualClock
from rftd.ops.errors import RftdError
from rftd.ops.metrics import Metrics
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.streams.events.catalogue import UnknownVersionError
from rftd.streams.folds.failed_tasks import FailedTasks
from rftd.streams.folds.letters import Letters
from rftd.streams.folds.run_state import RunState
from rftd.streams.log.deadletters import understood
from rftd.streams.log.effective import effective, of_experiment
from rftd.streams.log.envelope import Draft, Record
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.follower import Fold
from rftd.streams.log.shared_history import shared_history
from rftd.streams.log.start import beginning_of
from rftd.streams.log.topics import Partition
from rftd.streams.memory import MemoryLog
from rftd.streams.portable.export import OutsideNames
from rftd.streams.verify.checker import verify
from rftd.workers.control.controller import Controller
from rftd.workers.control.dispatcher import Dispatcher
from rftd.workers.control.liveness import Liveness
from rftd.workers.control.planner import Planner
from rftd.workers.rollout.view import ExplorerView


def records_of(drafts: list[Draft]) -> list[Record]:
    """The drafts at the places that an empty log gives them."""
    recorder = Recorder()
    for draft in drafts:
        recorder.put(draft)
    return recorder.records


def feed(records: list[Record], experiment: UUID, fold: Fold, each: Callable[[int, Record], None]) -> None:
    """Feeds a fold as a follower does; `each` is called after every record."""
    fences = FenceView()
    wanted = of_experiment(experiment)
    for number, record in enumerate(records):
        try:
            decoded = effective(record, fences, wanted)
        except UnknownVersionError:
            continue
        if decoded is not None:
            fold.apply(decoded)
        each(number, record)


def fold_and_decide(records: list[Record], experiment: UUID, seed: int) -> None:
    """Folds what a run knows, and lets its roles decide on the way."""
    chance = random.Random(f"decide {seed}")
    liveness, clock = Liveness(), ManualClock()
    state = RunState(experiment, on_sign_of_life=liveness.note)
    state.touched = {}
    planner = Planner(state)
    positions: dict[Partition, int] = {}
    controller, dispatcher = Controller(state), Dispatcher(state, liveness)

    def decide(number: int, record: Record) -> None:
        positions[record.partition] = record.offset + 1
        if number != len(records) - 1 and chance.random() > 0.02:
            return
        clock.advance(chance.choice((0.1, 10.0, 4000.0)))
        scene = RunSnapshot(state=state, liveness=liveness, now_s=clock.monotonic_s(), now_ns=clock.now_ns())
        for work in (
            lambda: controller.decide(now_ns=clock.now_ns()),
            lambda: dispatcher.decide(clock.monotonic_s()),
            lambda: planner.decide(positions, clock.now_ns()),
            lambda: list(answer._waits(scene)),
        ):
            named(work)

    feed(records, experiment, state, decide)
    state.parts()


def named(work: Callable[[], object]) -> None:
    """Does it; an error of ours is an answer, any other is not."""
    with suppress(RftdError):
        work()


def quietly(records: list[Record], experiment: UUID) -> None:
    """Feeds those who decide nothing: the folds of workers, the registry, metrics and exports."""
    for fold in (RunState(experiment, spine_only=True), ExplorerView(experiment)):
        feed(records, experiment, fold, lambda number, record: None)
    registry = Registry(MemoryLog())
    names = OutsideNames()
    letters = Letters()
    fences = FenceView()
    metrics = MetricsFeed(Metrics(version="1"))
    for record in records:
        try:
            registry._fold(record)
            names.take(record)
            decoded = effective(record, fences)
            if decoded is not None:
                letters.apply(decoded.event, decoded.head.time_ns)
        except UnknownVersionError:
            continue
    registry.line()
    names.kept_checkpoints()
    names.kept_weights()
    show([record for record in records if not _newer(record)], metrics, FenceView())
    metrics.metrics.expose()


def _newer(record: Record) -> bool:
    """True if a newer release wrote it: that stops its readers, on purpose."""
    try:
        understood(record)
    except UnknownVersionError:
        return True
    return False


async def of_a_log(drafts: list[Draft], experiment: UUID, seed: int) -> None:
    """Appends the drafts to a log, which is projected, verified, forked and searched for failed tasks."""
    kept = [draft for draft, record in zip(drafts, records_of(drafts), strict=True) if not _newer(record)]
    log, ids = MemoryLog(), set[UUID]()
    for draft in kept:
        if draft.id not in ids:
            ids.add(draft.id)
            await log.append([draft])
    engine = open_database("sqlite:///:memory:")
    try:
        projector = Projector(log, engine, clock=ManualClock())
        await projector.catch_up()
        await projector.close()
    finally:
        await engine.dispose()
    await verify(log)
    await FailedTasks().read(log)
    for work in (beginning_of(log, experiment), shared_history(log, experiment, seed % 4)):
        with suppress(RftdError):
            await work
