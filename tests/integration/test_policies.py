"""Whole runs on the embedded log with fake engines: one under each policy, some that use experiences again."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from synthetic.until import until

from rftd.daemon.run.supervisor.run import Run
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.storage.queries.books import Books, books_of
from rftd.storage.queries.experience_pages import list_experiences
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.folds.run_state import RunState, partitions_of
from rftd.streams.folds.spine import Status
from rftd.streams.log.codec import decode
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.log import EventLog
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import PolicySpec, PrioritySpec
from rftd.workers.control.policies.registry import POLICIES

on_a_file = pytest.mark.parametrize("log", ["sqlite"], indirect=True)
SWEEPING = ("hard_bound", "in_order", "windowed", "weight_fifo")
BATCH = 16


def limited(uses: int = 3, *, cooldown_s: float = 0.02, **changes: Any) -> PolicySpec:
    """A buffer whose experiences are used so often at most, and evicted beyond four batches."""
    fields: dict[str, Any] = {
        "max_staleness_versions": 3,
        "bounded": False,
        "max_inflight_batches": 2,
        "priority": PrioritySpec(kind="decay_limit_randomization", args={"use_count_limit": uses, "sigma": 0.1}),
        "max_uses": uses,
        "cooldown_s": cooldown_s,
        "capacity": 4 * BATCH,
        "evict_when_full": True,
    }
    return PolicySpec(**fields | changes)


async def driven(log: EventLog, experiment: UUID, world: Any, clock: SystemClock, ids: SystemIds) -> RunState:
    """The run, played to its end, which is a good one."""
    run = Run(log, experiment, world.executor(log, clock, ids), owner=ids.new(), clock=clock, ids=ids, logger=logger())
    async with asyncio.timeout(60):
        await run.drive()
    spine = run.state.spine
    assert spine.status is Status.COMPLETED, (spine.code, spine.reason)
    report = await world.verified(log)
    assert report.clean, report.findings
    counts = run.state.replay_buffer.counts()
    assert (counts["balance"], counts["waiting"], counts["cooling"]) == (0, 0, 0)
    return run.state


async def folded(log: EventLog, experiment: UUID) -> tuple[RunState, list[BatchPlanned]]:
    """Everything once more from the start of the log, and the plans that hold experiences."""
    state, fences, plans = RunState(experiment), FenceView(), []
    for partition in partitions_of(experiment):
        offset, heads = 0, await log.heads()
        while partition in heads and offset < heads[partition].next_offset:
            records = await log.read(partition, offset)
            for decoded in map(decode, records):
                if fences.admit(partition, decoded.head, decoded.event):
                    if decoded.head.experiment in (None, experiment):
                        state.apply(decoded)
                    if isinstance(decoded.event, BatchPlanned) and decoded.event.experiences:
                        plans.append(decoded.event)
            offset = records[-1].offset + 1
    return state, plans


async def tabled(log: EventLog, experiment: UUID, clock: SystemClock) -> tuple[Books, Counter[int]]:
    """The books as the tables have them, and how many experiences were used how often."""
    engine = open_database("sqlite:///:memory:")
    projector = Projector(log, engine, clock=clock)
    await projector.catch_up()
    await projector.close()
    async with engine.connect() as connection:
        books = await books_of(connection, experiment)
        rows = (await list_experiences(connection, experiment, limit=10_000)).items
    await engine.dispose()
    return books, Counter(row.uses for row in rows if row.state != "late")


def used(plans: list[BatchPlanned], limit: int) -> Counter[UUID]:
    """How often each experience was planned; none too often, and none before it had rested."""
    uses: Counter[UUID] = Counter()
    rested: dict[UUID, int] = {}
    for plan in plans:
        assert plan.max_uses == limit
        for item in plan.experiences:
            uses[item.experience] += 1
            assert item.use == uses[item.experience]
            assert not limit or item.use <= limit
            assert plan.decided_at_ns >= rested.get(item.experience, 0)
            rested[item.experience] = plan.eligible_at_ns
    return uses


@pytest.mark.anyio
@on_a_file
@pytest.mark.parametrize("kind", [kind for kind in POLICIES.names() if kind != "hard_bound"])
async def test_a_run_under_each_policy(tmp_path: Path, log: EventLog, clock, ids, fake_world, kind: str) -> None:
    """The bound is one version, with weights announced every second step; kinds that only pace may be over it."""
    args = {"trigger_parameter_sync_step": 2} if kind == "verl_window" else {}
    policy = PolicySpec(
        kind=kind, max_staleness_versions=1, bounded=kind in SWEEPING, max_inflight_batches=2, args=args
    )
    spec = fake_world.spec(
        tmp_path,
        policy=policy,
        synchronizer=Synchronizer(sync_method="checkpoint", sync_style="fully_async", sync_interval=2),
    )
    experiment = await fake_world.submitted(log, spec, clock, ids)
    state = await driven(log, experiment, fake_world, clock, ids)
    again, plans = await folded(log, experiment)
    assert again.replay_buffer.counts() == state.replay_buffer.counts()
    assert len(plans) == 5
    assert set(used(plans, 1).values()) == {1}
    if kind in SWEEPING:
        assert max(item.staleness_versions for plan in plans for item in plan.experiences) <= 1


@pytest.mark.anyio
@on_a_file
@pytest.mark.parametrize(
    "policy",
    [limited(3), limited(2, bounded=True), limited(0, priority=PrioritySpec(kind="linear_decay", args={"decay": 0.6}))],
    ids=["limit 3", "limit 2 within the bound", "no limit"],
)
async def test_experiences_that_are_used_again(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, policy: PolicySpec
) -> None:
    spec = fake_world.spec(tmp_path, policy=policy, total_steps=8)
    experiment = await fake_world.submitted(log, spec, clock, ids)
    state = await driven(log, experiment, fake_world, clock, ids)
    again, plans = await folded(log, experiment)
    assert again.replay_buffer.counts() == state.replay_buffer.counts()
    assert again.replay_buffer.books == state.replay_buffer.books
    uses = used(plans, policy.max_uses)
    assert sum(uses.values()) == 8 * BATCH
    assert [plan.incomplete for plan in plans] == [False] * 8
    books, by_uses = await tabled(log, experiment, clock)
    counts = state.replay_buffer.counts()
    assert (books.produced, books.planned, books.balance) == (counts["produced"], counts["planned"], 0)
    assert (books.waiting, books.cooling, books.retired) == (0, 0, state.replay_buffer.books.retired)
    assert {count: by_uses[count] for count in by_uses if count} == dict(Counter(uses.values()))


@pytest.mark.anyio
@on_a_file
async def test_what_rests_survives_a_restart(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> None:
    """Drained in its middle, with experiences that rest for longer than the restart takes: from a snapshot on."""
    policy = limited(0, cooldown_s=3600.0, capacity=0)
    spec = fake_world.spec(tmp_path, policy=policy, total_steps=16)
    experiment = await fake_world.submitted(log, spec, clock, ids)
    run = Run(
        log, experiment, fake_world.executor(log, clock, ids), owner=ids.new(), clock=clock, ids=ids, logger=logger()
    )
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(60):
        driving = tasks.create_task(run.drive())
        await until(lambda: run.state.spine.furthest >= 5 or driving.done())
        await run.drain()
    before, _ = await folded(log, experiment)
    assert not run.state.spine.status.ended
    assert before.replay_buffer.cooling
    assert msgspec.to_builtins(before.replay_buffer.cooling, str_keys=True) == msgspec.to_builtins(
        run.state.replay_buffer.cooling, str_keys=True
    )
    state = await driven(log, experiment, fake_world, clock, ids)
    again, plans = await folded(log, experiment)
    assert again.replay_buffer.books == state.replay_buffer.books
    assert set(used(plans, 0).values()) == {1}, "nothing was used again within the hour"
    assert state.replay_buffer.books.retired["stage_ended"] >= 16 * BATCH


@pytest.mark.anyio
@on_a_file
async def test_a_batch_that_cannot_be_filled_in_time_takes_what_has_rested(
    tmp_path: Path, log: EventLog, clock, ids, fake_world
) -> None:
    """A time-out that is shorter than a batch takes: what is there is planned, the rest later, and nothing is lost."""
    policy = limited(2, cooldown_s=0.5, kind="areal", max_staleness_versions=0, capacity=0, evict_when_full=False)
    spec = fake_world.spec(tmp_path, policy=policy, total_steps=4, max_read_timeout_s=0.05)
    experiment = await fake_world.submitted(log, spec, clock, ids)
    await driven(log, experiment, fake_world, clock, ids)
    _, plans = await folded(log, experiment)
    assert len(plans) == 4
    assert max(used(plans, 2).values()) <= 2
    assert all(plan.incomplete == (len(plan.experiences) < BATCH) for plan in plans)
