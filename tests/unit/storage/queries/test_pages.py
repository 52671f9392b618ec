"""Pages of lists behind cursors: together they are the list, and they stay where they are while rows arrive."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from synthetic.log.busy_run import BusyRun
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock
from rftd.ops.errors import UsageError
from rftd.storage.projector.projector import Projector
from rftd.storage.queries import experience_pages, experiences, group_pages, rollout_rows
from rftd.storage.queries.cursor import CursorError, cursor_of
from rftd.storage.queries.experience_pages import ORDERS, ExperienceFilter, list_experiences
from rftd.storage.queries.experiences import ExperienceRow
from rftd.storage.queries.experiments import ORDERS as RUN_ORDERS
from rftd.storage.queries.experiments import ExperimentFilter, list_experiments
from rftd.storage.queries.rows import fetch
from rftd.storage.queries.run_figures import FiguresCache, _explorer_idle, _RecentRollout
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def busy() -> BusyRun:
    """A run with experiences in every state; read only."""
    return BusyRun(Recorder(3), steps=3, seed=3).write()


@pytest.fixture
async def connection(busy: BusyRun, either: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    log = MemoryLog()
    await log.append(busy.recorder.drafts)
    projector = Projector(log, either, clock=ManualClock())
    await projector.catch_up()
    await projector.close()
    async with either.connect() as connection:
        yield connection


async def all_pages(connection: AsyncConnection, id: UUID, limit: int, **query: Any) -> list[ExperienceRow]:
    """The rows of all pages."""
    rows: list[ExperienceRow] = []
    cursor = None
    while True:
        page = await list_experiences(connection, id, limit=limit, cursor=cursor, **query)
        assert len(page.items) <= limit
        rows += page.items
        cursor = page.next
        if cursor is None:
            return rows


def expected(rows: list[ExperienceRow], order: str) -> list[str]:
    """The ids in an order, by Python."""
    column = {"newest": "produced_ns", "oldest": "produced_ns"}.get(order, order.lstrip("-"))
    field = "staleness_versions" if column == "staleness" else column
    chosen = [row for row in rows if getattr(row, field) is not None]
    chosen.sort(key=lambda row: (getattr(row, field), row.produced_ns, row.id))
    return [row.id for row in (chosen[::-1] if order.startswith("-") or order == "newest" else chosen)]


@pytest.mark.parametrize("scan", [4, 2000])
async def test_pages_of_every_order_and_filter_are_the_list(
    connection: AsyncConnection, busy: BusyRun, monkeypatch: pytest.MonkeyPatch, scan: int
) -> None:
    monkeypatch.setattr(experience_pages, "SCAN", scan)
    rows = await all_pages(connection, busy.id, 1000)
    assert {row.state for row in rows} >= {"open", "waiting", "planned", "retired", "late"}
    group = rows[5].group
    task_row = await connection.scalar(
        text("SELECT row_start FROM leases WHERE kind = 'task' AND experiment IS NOT NULL")
    )
    in_row = {str(UUID(bytes=bytes(id))) for (id,) in await connection.execute(
        text("SELECT subject FROM leases WHERE row_start = :row AND kind = 'task'"), {"row": task_row})}  # fmt: skip
    filters: list[tuple[ExperienceFilter, Any]] = [
        (ExperienceFilter(), lambda row: True),
        (ExperienceFilter(min_reward=0.5), lambda row: row.reward >= 0.5),
        (ExperienceFilter(max_reward=0.5, min_staleness_versions=1),
         lambda row: row.reward <= 0.5 and (row.staleness_versions or 0) >= 1),
        (ExperienceFilter(first_step=3, last_step=4), lambda row: row.step in (3, 4)),
        (ExperienceFilter(first_step=1, last_step=40), lambda row: row.step is not None),
        (ExperienceFilter(group=UUID(group)), lambda row: row.group == group),
        (ExperienceFilter(row=task_row), lambda row: row.group in in_row),
        (ExperienceFilter(finish="stop"), lambda row: row.finish == "stop"),
        (ExperienceFilter(version=3), lambda row: row.oldest_version <= 3 <= row.newest_version),
        (ExperienceFilter(part="accuracy", min_part=0.5), lambda row: row.metrics.get("accuracy", 0) >= 0.5),
        (ExperienceFilter(part="none"), lambda row: False),
        *((ExperienceFilter(state=state), lambda row, state=state: row.state == state)
          for state in experience_pages.STATES),
    ]  # fmt: skip
    for order in ORDERS:
        for where, passes in filters:
            paged = await all_pages(connection, busy.id, 3, where=where, order=order)
            assert [row.id for row in paged] == expected([row for row in rows if passes(row)], order), (order, where)


@pytest.mark.parametrize("order", sorted(ORDERS))
@pytest.mark.parametrize("where", [{"first_step": 3, "last_step": 5}, {"row": 1}], ids=["steps", "row"])
async def test_members_of_some_groups_are_searched_by_group(
    connection: AsyncConnection, busy: BusyRun, monkeypatch: pytest.MonkeyPatch, order: str, where: dict[str, int]
) -> None:
    if connection.dialect.name != "sqlite":
        pytest.skip("the plan of SQLite; Postgres estimates the rows of each way")
    plans: list[str] = []
    fetch = experience_pages.fetch

    async def explained(connection: AsyncConnection, kind: Any, sql: str, **parameters: Any) -> Any:
        plan = await connection.execute(text(f"EXPLAIN QUERY PLAN {sql}"), parameters)
        plans.extend(row[3] for row in plan if row[3].startswith("SEARCH e "))
        return await fetch(connection, kind, sql, **parameters)

    monkeypatch.setattr(experience_pages, "fetch", explained)
    await list_experiences(connection, busy.id, where=ExperienceFilter(**where), order=order)
    assert plans, "nothing was searched"
    assert all("(group_id=?" in plan for plan in plans), plans


async def test_what_is_asked_for_by_id_is_searched_by_id(
    connection: AsyncConnection, busy: BusyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the index of the experiment, each of these read every row of a run, seconds at a million experiences."""
    if connection.dialect.name != "sqlite":
        pytest.skip("the plan of SQLite; Postgres estimates the rows of each way")
    rows = (await list_experiences(connection, busy.id, limit=1000)).items
    planned = next(row for row in rows if row.step is not None)
    group, id = UUID(planned.group), UUID(planned.id)
    plans: list[str] = []

    async def explained(connection: AsyncConnection, kind: Any, sql: str, **parameters: Any) -> Any:
        plan = await connection.execute(text(f"EXPLAIN QUERY PLAN {sql}"), parameters)
        plans.extend(row[3] for row in plan)
        return await fetch(connection, kind, sql, **parameters)

    for module in (experiences, group_pages, rollout_rows):
        monkeypatch.setattr(module, "fetch", explained)
    asked = {
        "find_group": rollout_rows.find_group(connection, busy.id, str(group)),
        "find_experience": experiences.find_experience(connection, busy.id, planned.id[:8]),
        "tasks_of": group_pages.tasks_of(connection, busy.id, [group]),
        "experiences_with": rollout_rows.experiences_with(connection, busy.id, [id]),
        "rollouts_of_row": rollout_rows.rollouts_of_row(connection, busy.id, 1, stage=None, limit=9, offset=0),
        "rollouts_of_step": rollout_rows.rollouts_of_step(connection, busy.id, planned.step or 0),
        "plan_of": rollout_rows.plan_of(connection, id),
    }
    for name, query in asked.items():
        plans.clear()
        assert await query, f"{name} answered nothing"
        main = [plan for plan in plans if plan.startswith(("SEARCH e ", "SEARCH l ", "SEARCH leases ", "SEARCH b "))]
        # The rows of a task and the batch of a step are few, and are searched by their numbers.
        wrong = [plan for plan in main if "(experiment=?" in plan and " AND row_start=?" not in plan]
        wrong = [plan for plan in wrong if " AND step=?" not in plan]
        assert main, (name, plans)
        assert not wrong, (name, plans)


async def test_a_page_stays_where_it_is_while_rows_arrive(either: AsyncEngine) -> None:
    run = SyntheticRun(Recorder()).warmed_up()
    log, written = MemoryLog(), 0
    projector = Projector(log, either, clock=ManualClock())
    seen: list[str] = []
    cursor = None
    for _ in range(2):
        await log.append(run.recorder.drafts[written:])
        written = len(run.recorder.drafts)
        await projector.catch_up()
        async with either.connect() as connection:
            page = await list_experiences(connection, run.id, limit=2, cursor=cursor)
        seen += [row.id for row in page.items]
        cursor = page.next or cursor
        run.explore()
    await projector.close()
    assert len(set(seen)) == len(seen) == 4, "the rows of the first group, newest first"


async def test_a_cursor_of_another_list_order_or_release_is_refused(connection: AsyncConnection, busy: BusyRun) -> None:
    page = await list_experiences(connection, busy.id, limit=1)
    assert page.next is not None
    damaged = page.next[:-6]
    other_form = cursor_of(f"experiences of {busy.id}", "newest", ("a", "b"))
    wrong: list[tuple[UUID, str, str, str]] = [
        (UUID(int=1), "newest", page.next, "another list"),
        (busy.id, "reward", page.next, "of the order 'newest', not 'reward'"),
        (busy.id, "newest", damaged, "not a cursor"),
        (busy.id, "newest", "\u00e9\u2603", "not a cursor"),
        (busy.id, "newest", other_form, "damaged"),
        (busy.id, "newest", cursor_of(f"experiences of {busy.id}", "newest", (1 << 63, "x")), "damaged"),
    ]
    for id, order, cursor, message in wrong:
        with pytest.raises(CursorError, match=message):
            await list_experiences(connection, id, order=order, cursor=cursor)
    with pytest.raises(UsageError, match="need its name"):
        await list_experiences(connection, busy.id, where=ExperienceFilter(min_part=1.0))


async def test_experiments_by_every_order_and_filter(either: AsyncEngine) -> None:
    recorder = Recorder()
    runs = [SyntheticRun(recorder, name=f"run {letter}", seed=number, steps=number % 3) for number, letter in
            enumerate("cabed")]  # fmt: skip
    for number, run in enumerate(runs):
        run.figures = {"critic/rewards/mean": (0.5, -0.25, 0.75, 0.5, 0.1)[number]}
        run.write()
    log = MemoryLog()
    await log.append(recorder.drafts)
    projector = Projector(log, either, clock=ManualClock())
    await projector.catch_up()
    await projector.close()
    async with either.connect() as connection:
        whole = (await list_experiments(connection)).items
        for order in RUN_ORDERS:
            rows = []
            cursor = None
            while True:
                page = await list_experiments(connection, order=order, limit=2, cursor=cursor)
                rows += page.items
                cursor = page.next
                if cursor is None:
                    break
            assert sorted(row.id for row in rows) == sorted(row.id for row in whole), order
            shown = [row.reward_curve[-1] if row.reward_curve else -9.0 for row in rows]
            if order.endswith("reward"):
                assert shown == sorted(shown, reverse=order.startswith("-"))
            elif order == "name":
                assert [row.name for row in rows] == sorted(row.name for row in whole)
        named = await list_experiments(connection, where=ExperimentFilter(words="A run"))
        assert [row.name for row in named.items] == ["run a"]
        good = await list_experiments(connection, where=ExperimentFilter(min_reward=0.4))
        assert {row.reward_curve[-1] for row in good.items} == {0.5, 0.75}
        assert [
            row.name for row in (await list_experiments(connection, where=ExperimentFilter(signal="lost"))).items
        ] == []
        assert whole[0].held_out or whole[1].held_out


async def test_places_in_a_queue_follow_priority_and_submission(either: AsyncEngine) -> None:
    projector = Projector(MemoryLog(), either, clock=ManualClock())
    await projector.catch_up()
    await projector.close()
    async with either.connect() as connection:
        order = list(range(40))
        random.Random(1).shuffle(order)
        insert = text("""INSERT INTO experiments (id, name, state, submitted_ns, submitted_offset, submitted_partition,
            priority, prioritized, total_steps, project, labels)
        VALUES (:id, 'q', 'queued', :at, 1, 0, :p, NULL, 1, 'p', '{}')""")
        for number in order:
            row = {"id": UUID(int=number + 1).bytes, "at": number, "p": number % 3}
            await connection.execute(insert, row)
        rows = (await list_experiments(connection)).items
        by_place = sorted(rows, key=lambda row: row.queue_position or 0)
        assert [row.queue_position for row in by_place] == list(range(1, 41))
        assert [(row.priority, row.submitted_ns) for row in by_place] == sorted(
            ((row.priority, row.submitted_ns) for row in rows), key=lambda pair: (-pair[0], pair[1])
        )
        await connection.rollback()


async def test_cached_figures_are_read_again_after_new_records(connection: AsyncConnection, busy: BusyRun) -> None:
    cache = FiguresCache()
    first = await cache.of(connection, busy.id, counts={busy.id: 7})
    await connection.execute(text("UPDATE experiences SET reward = 5.0"))
    assert await cache.of(connection, busy.id, counts={busy.id: 7}) == first
    assert cache.counts(lambda _: 8) == {busy.id: 8}
    assert (await cache.of(connection, busy.id, counts={busy.id: 8})).reward_mean == 5.0
    await connection.execute(text("UPDATE experiences SET reward = 6.0"))
    assert (await cache.of(connection, busy.id, counts={})).reward_mean == 6.0, "counted after the tables were opened"
    await connection.rollback()


async def test_a_list_shows_scores_with_change_idle_explorers_and_clipped_tokens(either: AsyncEngine) -> None:
    run = SyntheticRun(Recorder(), duration_s=0.005, figures={"actor/pg_clipfrac": 0.25}).write()
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    projector = Projector(log, either, clock=ManualClock())
    await projector.catch_up()
    await projector.close()
    async with either.connect() as connection:
        (row,) = (await list_experiments(connection)).items
    score = row.held_out["held_out"]
    assert (score.score, score.version, score.stderr, score.change) == (0.75, 5, 0.25, 0.0)
    assert row.clipped == 0.25
    assert row.explorer_idle is not None
    assert 0.5 < row.explorer_idle < 1.0, "rollouts of 5 ms, an event each 10 ms"


def test_an_explorer_is_idle_between_rollouts_and_not_while_they_overlap() -> None:
    def rollout(worker: str, begin_s: float, end_s: float) -> _RecentRollout:
        return _RecentRollout(worker, 1.0, end_s - begin_s, int(end_s * 1e9))

    busy = [rollout("a", 0, 2), rollout("a", 1, 4), rollout("a", 3, 6)]
    assert _explorer_idle(busy) == 0.0
    assert _explorer_idle([*busy, rollout("b", 0, 1), rollout("b", 3, 5)]) == pytest.approx(2 / 8)
    assert _explorer_idle([rollout("a", 0, 2)]) is None
    assert _explorer_idle([_RecentRollout("a", None, None, 5)]) is None
