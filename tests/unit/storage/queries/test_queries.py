"""What the CLI and the API read, on one complete run and one that has only begun."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from synthetic.log.busy_run import BusyRun
from synthetic.log.recorder import Recorder
from synthetic.log.scanned_books import scanned_books
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.worlds.desk import lease_of

from rftd.ops.clock import ManualClock
from rftd.ops.errors import NotFoundError, UsageError
from rftd.ops.two_samples import ks_test
from rftd.storage.projector.counts_update import CountsUpdate
from rftd.storage.projector.projector import Projector
from rftd.storage.queries import batches, drops, experiences, experiments, lengths, steps, weights
from rftd.storage.queries.buffer import count_buffer
from rftd.storage.queries.curve import RewardCurves
from rftd.storage.queries.experience_pages import ExperienceFilter, list_experiences
from rftd.storage.queries.experiments import ExperimentFilter
from rftd.storage.queries.names import resolve_experiment
from rftd.streams.events.batch import BatchAbandoned
from rftd.streams.events.experiment import ExperimentPaused, ExperimentResumed
from rftd.streams.events.task import Member
from rftd.streams.events.weights import WeightsOverdue
from rftd.streams.log.topics import TASKS, Partition
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def done(recorder: Recorder) -> SyntheticRun:
    return SyntheticRun(recorder, name="done").write()


@pytest.fixture(scope="module")
def begun(recorder: Recorder, done: SyntheticRun) -> SyntheticRun:
    run = SyntheticRun(recorder, name="begun", seed=1)
    run.begin()
    run.warm_up()
    run.explore(failed=1)
    open_group = lease_of(UUID(int=7), worker=run.workers[0], sequence=9, stage=1)
    recorder.write(open_group, run.id, role="dispatcher", partition=Partition(TASKS, 0))
    run.produce(open_group.group, 0, open_group.lease)
    for window, version in ((3, 2), (1, -1)):
        late = WeightsOverdue(stage=1, window=window, wanted=4, version=version, waited_s=60.5, reason="late")
        recorder.write(late, run.id, role="dispatcher")
    return run


@pytest.fixture
async def connection(
    recorder: Recorder, done: SyntheticRun, begun: SyntheticRun, engine: AsyncEngine
) -> AsyncIterator[AsyncConnection]:
    log = MemoryLog()
    await log.append(recorder.drafts)
    await Projector(log, engine, clock=ManualClock()).catch_up()
    async with engine.connect() as connection:
        yield connection


async def test_list_shows_state_stage_and_step(connection: AsyncConnection, begun: SyntheticRun) -> None:
    newest, oldest = (await experiments.list_experiments(connection)).items
    assert (newest.name, newest.state, newest.stage, newest.step, newest.total_steps) == (
        "begun",
        "running",
        "rft",
        2,
        5,
    )
    assert newest.staleness_p95 is None
    assert newest.reward_mean is not None
    assert (oldest.name, oldest.state, oldest.step, oldest.staleness_p95) == ("done", "completed", 5, 0)
    only = (await experiments.list_experiments(connection, where=ExperimentFilter(states=("running", "paused")))).items
    assert [row.id for row in only] == [str(begun.id)]
    first = await experiments.list_experiments(connection, limit=1)
    assert first.items == [newest]
    assert await experiments.list_experiments(connection, limit=1, cursor=first.next) == ([oldest], None)


@pytest.mark.parametrize("cause", ["", "refused"])
async def test_the_reason_of_a_pause_is_over_with_it(engine: AsyncEngine, cause: str) -> None:
    recorder = Recorder()
    run = SyntheticRun(recorder, name="again", seed=2)
    run.begin()
    recorder.write(ExperimentPaused(reason="the model is gone", cause=cause), run.id, role="controller")
    recorder.write(ExperimentResumed(reason=f"{cause}: tried again"), run.id, role="controller")
    log = MemoryLog()
    await log.append(recorder.drafts)
    await Projector(log, engine, clock=ManualClock()).catch_up()
    async with engine.connect() as connection:
        summary = (await experiments.get_experiment(connection, run.id)).summary
    assert (summary.state, summary.code or "", summary.reason or "") == ("running", "", "")


async def test_the_books_balance(connection: AsyncConnection, done: SyntheticRun, begun: SyntheticRun) -> None:
    books = (await experiments.get_experiment(connection, done.id)).books
    assert (books.produced, books.waiting, books.planned, books.retired) == (27, 2, 24, {"stale": 1})
    assert (books.balance, books.late, books.open, books.failed_rollouts) == (0, 1, 0, 1)
    books = (await experiments.get_experiment(connection, begun.id)).books
    assert (books.produced, books.waiting, books.planned, books.open, books.balance) == (3, 3, 0, 1, 0)


async def test_the_books_say_what_was_given_up(connection: AsyncConnection, done: SyntheticRun) -> None:
    assert (await experiments.get_experiment(connection, done.id)).books.given_up == {}
    counted = text("INSERT INTO counts (experiment, kind, reason, count) VALUES (:id, 'code', :code, 1)")
    await connection.execute(
        counted, [{"id": done.id.bytes, "code": code} for code in ("RFTD-WRK-008", "RFTD-WRK-003")]
    )
    books = (await experiments.get_experiment(connection, done.id)).books
    assert books.given_up == {"RFTD-WRK-008": 1}
    assert books.balance == 0
    await connection.rollback()


async def test_a_warning_is_shown_once(connection: AsyncConnection, done: SyntheticRun) -> None:
    """The specification has it, and so has an event of its own."""
    columns = "experiment, number, text, warned_ns, warned_partition, warned_offset"
    again = f"INSERT INTO warnings (origin, {columns}) SELECT 'again', {columns} FROM warnings"
    await connection.execute(text(again))
    assert (await experiments.get_experiment(connection, done.id)).warnings == ["nccl ignored"]
    await connection.rollback()


async def test_one_experiment_whole(connection: AsyncConnection, done: SyntheticRun) -> None:
    detail = await experiments.get_experiment(connection, done.id)
    assert [(s.name, s.first_version, s.last_version) for s in detail.stages] == [("warmup", 0, 2), ("rft", 2, 5)]
    assert detail.warnings == ["nccl ignored"]
    assert detail.config == {"name": "done"}
    assert (detail.groups_closed, detail.generations, detail.deterministic) == (7, 1, False)
    with pytest.raises(NotFoundError):
        await experiments.get_experiment(connection, UUID(int=1))


async def test_steps_with_their_batches(connection: AsyncConnection, done: SyntheticRun) -> None:
    rows = await steps.list_steps(connection, done.id)
    assert [row.step for row in rows] == [1, 2, 3, 4, 5]
    assert [UUID(row.batch) for row in rows] == done.batches
    assert rows[0].reward_mean is None
    assert rows[2].staleness_max == 0
    assert rows[1].metrics == {"loss": 0.5, "bad": None}
    assert [row.step for row in await steps.list_steps(connection, done.id, first_step=2, last_step=3)] == [2, 3]
    curve = await RewardCurves().of(connection, done.id)
    assert [(point.step, point.experiences) for point in curve] == [(3, 8), (4, 8), (5, 8)]
    assert [point.reward_mean for point in curve] == [row.reward_mean for row in rows[2:]]
    evals = await steps.list_evals(connection, done.id, taskset="held_out")
    assert [(row.version, row.score) for row in evals] == [(3, 0.75), (4, 0.75), (5, 0.75)]
    assert await steps.list_evals(connection, done.id, taskset="other") == []


async def test_batches_and_their_items(connection: AsyncConnection, done: SyntheticRun) -> None:
    rows = await batches.list_batches(connection, done.id)
    assert [(row.step, row.state) for row in rows] == [*((n, "trained") for n in range(1, 6)), (6, "abandoned")]
    experiences_of_4 = await batches.list_items(connection, UUID(rows[3].id))
    assert [item.item for item in experiences_of_4] == list(range(8))
    assert {(item.row, item.epoch) for item in experiences_of_4} == {(2, 0), (3, 0)}
    rows_of_1 = await batches.list_items(connection, UUID(rows[0].id))
    assert [(item.digest, item.row, item.experience) for item in rows_of_1] == [("d" * 64, n, None) for n in range(4)]


async def test_experiences_by_filter_and_order(connection: AsyncConnection, done: SyntheticRun) -> None:
    async def ids(where: ExperienceFilter, order: str = "oldest", limit: int = 100) -> list[experiences.ExperienceRow]:
        return (await list_experiences(connection, done.id, where=where, order=order, limit=limit)).items

    everything = await ids(ExperienceFilter())
    assert len(everything) == 28
    assert everything == list(reversed(await ids(ExperienceFilter(), "newest")))
    assert {row.step for row in await ids(ExperienceFilter(first_step=4, last_step=5))} == {4, 5}
    good = await ids(ExperienceFilter(min_reward=1.0, max_staleness_versions=0))
    assert good
    assert all(row.reward == 1.0 and row.uses == 1 for row in good)
    best = await ids(ExperienceFilter(), "-reward", limit=3)
    assert [row.reward for row in best] == [1.0, 1.0, 1.0]
    states = {
        state: len(await ids(ExperienceFilter(state=state))) for state in ("waiting", "planned", "retired", "late")
    }
    assert states == {"waiting": 2, "planned": 24, "retired": 1, "late": 1}
    late = await experiences.get_experience(connection, done.late)
    assert (late.state, late.step, late.uses, late.metrics) == ("late", None, 0, {"accuracy": late.reward})
    with pytest.raises(UsageError, match="no order"):
        await ids(ExperienceFilter(), "random")
    with pytest.raises(NotFoundError):
        await experiences.get_experience(connection, UUID(int=3))


async def test_lengths_of_what_was_generated_and_trained(connection: AsyncConnection, done: SyntheticRun) -> None:
    found = await lengths.lengths_of(connection, done.id)
    rows = (await list_experiences(connection, done.id, limit=100)).items
    trained = sorted(row.response_tokens for row in rows if row.uses)
    dropped = [row.response_tokens for row in rows if row.state in ("retired", "late")]
    assert (found.trained.count, found.dropped.count, found.undecided) == (24, 2, 2)
    assert found.dropped_by_reason == {"late": 1, "stale": 1}
    assert found.never_ended == 0  # the one that failed its group came late
    assert found.generated.count == 26
    assert found.generated.max == max(trained + dropped)
    assert found.trained.mean == pytest.approx(sum(trained) / 24)
    assert (found.trained.p50, found.trained.p90, found.trained.max) == (trained[11], trained[21], trained[23])
    assert (found.statistic, found.p) == ks_test(trained + dropped, trained)
    assert await lengths.lengths_of(connection, done.id, stage=1) == found
    none = await lengths.lengths_of(connection, done.id, stage=0)
    assert (none.generated.count, none.trained.p99, none.never_ended, none.p) == (0, 0, 0, 1.0)
    await connection.execute(text("UPDATE groups SET failed = failed + 3 WHERE sequence = 0"))
    assert (await lengths.lengths_of(connection, done.id)).never_ended == 3
    await connection.rollback()


async def test_drops_by_reason_with_lengths_and_examples(connection: AsyncConnection, done: SyntheticRun) -> None:
    found = await drops.drops_of(connection, done.id)
    rows = {row.id: row for row in (await list_experiences(connection, done.id, limit=100)).items}
    assert [(drop.reason, drop.experiences, drop.share) for drop in found.reasons] == [
        ("late", 1, 1 / 26),
        ("stale", 1, 1 / 26),
    ]
    late, stale = found.reasons
    assert late.examples == [str(done.late)]
    assert rows[stale.examples[0]].retired_reason == "stale"
    assert stale.tokens.max == rows[stale.examples[0]].response_tokens
    assert (found.trained.count, found.dropped.count, found.undecided) == (24, 2, 2)
    [failure] = found.failures
    assert (failure.code, failure.rollouts, failure.reason) == ("RFTD-WRK-003", 1, "too\ufffdlate")
    assert found.failed_rollouts == 1
    assert found.given_up == []
    assert await drops.drops_of(connection, done.id, stage=1) == found
    none = await drops.drops_of(connection, done.id, stage=0)
    assert (none.reasons, none.failures, none.rollouts) == ([], [], 0)
    await connection.execute(text("UPDATE groups SET members = 0, code = 'X' WHERE sequence = 0"))
    counts = CountsUpdate()
    counts.add_groups([(done.id.bytes, 1, 0, 3, "X")], 1)
    for write in counts.writes():
        for row in write.rows:
            await connection.exec_driver_sql(write.in_file, row)
    changed = await drops.drops_of(connection, done.id)
    assert [(row.code, row.rollouts) for row in changed.failures] == [("", 3), ("RFTD-WRK-003", 1)]
    assert [(row.code, row.tasks, len(row.examples)) for row in changed.given_up] == [("X", 1, 1)]
    await connection.rollback()


async def test_announcements_count_only_with_their_step(connection: AsyncConnection, done: SyntheticRun) -> None:
    versions = await weights.list_weights(connection, done.id)
    assert {row.version: row.counts for row in versions} == {0: True, 2: True, 3: True, 4: True, 5: True, 55: False}
    assert versions[0].holders == 2
    checkpoints = await weights.list_checkpoints(connection, done.id)
    assert [(row.step, row.counts, row.final, row.deleted_reason) for row in checkpoints] == [
        (2, True, True, None),
        (5, True, True, None),
    ]
    newest = await weights.existing_checkpoints(connection, done.id, newest=1)
    assert newest == checkpoints[1:]
    assert await weights.existing_checkpoints(connection, done.id, newest=1, beside=[2, 4, 5]) == checkpoints
    workers = await weights.list_workers(connection, done.id)
    assert await weights.list_workers(connection, done.id, newest=2) == workers[1:]
    assert [(row.role, row.state) for row in workers] == [
        ("explorer", "lost"),
        ("explorer", "live"),
        ("trainer", "stopped"),
    ]
    assert len(await weights.list_workers(connection)) == 6


async def test_windows_that_waited_too_long(connection: AsyncConnection, begun: SyntheticRun) -> None:
    found = await weights.list_overdue(connection, begun.id)
    assert await weights.list_overdue(connection, begun.id, newest=1) == found[1:]
    assert await weights.count_overdue(connection, begun.id) == 2
    assert [(row.stage, row.window, row.wanted, row.version) for row in found] == [(1, 1, 4, -1), (1, 3, 4, 2)]
    assert (found[0].waited_s, found[0].reason) == (60.5, "late")
    assert found[0].overdue_ns


async def test_names(connection: AsyncConnection, done: SyntheticRun, begun: SyntheticRun) -> None:
    assert await resolve_experiment(connection, "done") == done.id
    assert await resolve_experiment(connection, "begun@1") == begun.id
    assert await resolve_experiment(connection, str(begun.id)) == begun.id
    shared = next(n for n in range(33) if done.id.hex[:n] != begun.id.hex[:n])
    assert await resolve_experiment(connection, done.id.hex[:shared]) == done.id
    with pytest.raises(UsageError, match="names 2 experiments") as ambiguous:
        await resolve_experiment(connection, done.id.hex[: shared - 1])
    assert str(done.id) in str(ambiguous.value)
    assert "begun" in str(ambiguous.value)
    for wanted in ("nobody", "done@2", "", "do\x00ne", "\ud800"):
        with pytest.raises(NotFoundError, match="known: done, begun"):
            await resolve_experiment(connection, wanted)


async def test_equal_names_are_told_apart(engine: AsyncEngine) -> None:
    recorder = Recorder()
    first, second = SyntheticRun(recorder, name="same"), SyntheticRun(recorder, name="same")
    first.begin()
    second.begin()
    log = MemoryLog()
    await log.append(recorder.drafts)
    await Projector(log, engine, clock=ManualClock()).catch_up()
    async with engine.connect() as connection:
        assert await resolve_experiment(connection, "same@2") == second.id
        with pytest.raises(UsageError, match="names 2 experiments") as ambiguous:
            await resolve_experiment(connection, "same")
    assert f"same@1 ({first.id})" in str(ambiguous.value)


class UnsteadyClockRun(BusyRun):
    """A run whose explorers' clocks go wrong, each way: some of its experiences are older than all before them."""

    def produce(self, group: UUID, rollout: int, lease: UUID, *, source: str = "") -> Member:
        """One experience, whenever its explorer says."""
        wrong_s = float(self.random.normal(0.0, 0.5))
        self.recorder.clock.set_by(wrong_s)
        made = super().produce(group, rollout, lease, source=source)
        self.recorder.clock.set_by(-wrong_s)
        return made


async def buffer_of(id: UUID, engine: AsyncEngine) -> set[tuple[str, int, int]]:
    async with engine.connect() as connection, connection.begin():
        return {(row.state, row.band, row.count) for row in await count_buffer(connection, id)}


async def test_the_buffer_has_the_experiences_of_the_books_as_the_log_grows(either: AsyncEngine) -> None:
    recorder = Recorder()
    runs = [
        kind(recorder, name=f"run-{number}", seed=number).write()
        for number, kind in enumerate((BusyRun, BusyRun, UnsteadyClockRun))
    ]
    log = MemoryLog()
    projector = Projector(log, either, clock=ManualClock())
    seen = set[str]()
    for start in range(0, len(recorder.drafts), 40):
        await log.append(recorder.drafts[start : start + 40])
        await projector.catch_up()
        for run in runs:
            found = await buffer_of(run.id, either)
            async with either.connect() as connection:
                books = await scanned_books(connection, run.id)
            by_state = {state: sum(count for name, _, count in found if name == state) for state, _, _ in found}
            assert by_state == {"waiting": books.waiting, "cooling": books.cooling, "open": books.open}, start
            seen |= {state for state, _, count in found if count}
    assert seen == {"waiting", "cooling", "open"}
    await projector.close()


async def test_what_was_planned_waits_again_once_its_batch_is_abandoned(engine: AsyncEngine) -> None:
    run = SyntheticRun(Recorder())
    run.begin()
    run.warm_up()
    run.explore()
    log = MemoryLog()
    projector = Projector(log, engine, clock=ManualClock())
    before = len(run.waiting)
    planned = run.plan(stage=1, take=before)
    await log.append(run.recorder.drafts)
    told = len(run.recorder.drafts)
    await projector.catch_up()
    assert ("waiting", 0, 0) in await buffer_of(run.id, engine)
    given_up = BatchAbandoned(batch=planned, step=run.version + 1, code="X", reason="no")
    run.recorder.write(given_up, run.id, role="planner")
    await log.append(run.recorder.drafts[told:])
    await projector.catch_up()
    assert ("waiting", 0, before) in await buffer_of(run.id, engine)
    await projector.close()
