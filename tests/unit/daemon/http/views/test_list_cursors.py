"""Lists over HTTP behind cursors: their pages are the list, whatever arrives meanwhile; other cursors are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import httpx
import msgspec
import pytest
from synthetic.daemon.daemon_parts import DaemonParts
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun, spec_of

from rftd.storage.queries import cursor as cursors
from rftd.streams.spec.spec import TasksetSpec

pytestmark = pytest.mark.anyio
LISTS: Final = ("events", "evals", "groups", "experiences")


async def get(client: httpx.AsyncClient, path: str, **query: Any) -> dict[str, Any]:
    answer = await client.get(f"/v1/experiments/{path}", params={k: v for k, v in query.items() if v is not None})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def walked(client: httpx.AsyncClient, path: str, limit: int, **query: Any) -> list[str]:
    """The ids of all pages."""
    ids: list[str] = []
    cursor = None
    while True:
        page = await get(client, path, limit=limit, cursor=cursor, **query)
        assert len(page["items"]) <= limit
        ids += [item["id"] for item in page["items"]]
        if page["next"] is None or page.get("more") is False:
            return ids
        cursor = page["next"]


@pytest.fixture
async def fork(parts: DaemonParts) -> SyntheticRun:
    """A fork of the run, with evaluations of its own."""
    run = SyntheticRun(Recorder(seed=5), name="fork", seed=5, faults=False, parent=parts.run.id).write()
    await parts.log.append(run.recorder.drafts)
    await parts.projector.catch_up()
    return run


@pytest.mark.usefixtures("fork")
@pytest.mark.parametrize("name", ["small", "fork"])
@pytest.mark.parametrize("kind", LISTS)
async def test_pages_are_the_list(client: httpx.AsyncClient, name: str, kind: str) -> None:
    whole = await walked(client, f"{name}/{kind}", 1000)
    assert len(whole) == len(set(whole)) > 2
    for limit in (1, 2, len(whole)):
        assert await walked(client, f"{name}/{kind}", limit) == whole


@pytest.mark.parametrize("kind", ["evals", "groups"])
async def test_rows_that_arrive_leave_the_next_page_where_it_was(
    parts: DaemonParts, client: httpx.AsyncClient, kind: str
) -> None:
    run = SyntheticRun(Recorder(seed=5), name="going", seed=5, steps=9)
    run.warmed_up()
    for _ in range(3):
        run.explore()
        run.explore()
        run.train()
    await parts.log.append(run.recorder.drafts)
    await parts.projector.catch_up()
    whole = await walked(client, f"going/{kind}", 1000)
    first = await get(client, f"going/{kind}", limit=2)
    written = len(run.recorder.drafts)
    run.explore()
    run.explore()
    run.train()
    await parts.log.append(run.recorder.drafts[written:])
    await parts.projector.catch_up()
    second = await get(client, f"going/{kind}", limit=1, cursor=first["next"])
    assert [item["id"] for item in first["items"] + second["items"]] == whole[:3]


@pytest.mark.usefixtures("fork")
@pytest.mark.parametrize("kind", LISTS)
async def test_a_cursor_of_another_list_run_or_release_is_refused(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    own = (await get(client, f"small/{kind}", limit=1))["next"]
    another = LISTS[LISTS.index(kind) - 1]
    wrong = [(await get(client, path, limit=1))["next"] for path in (f"small/{another}", f"fork/{kind}")]
    wrong += ["", "%%", "AAAA", own[:-3], own + own]
    monkeypatch.setattr(cursors, "FORM", 2)
    wrong.append((await get(client, f"small/{kind}", limit=1))["next"])
    monkeypatch.undo()
    for cursor in wrong:
        answer = await client.get(f"/v1/experiments/small/{kind}", params={"cursor": cursor})
        assert (answer.status_code, answer.json()["code"]) == (400, "RFTD-API-010"), (cursor, answer.text)


async def test_groups_name_the_row_and_the_failures(client: httpx.AsyncClient) -> None:
    newest, *older = (await get(client, "small/groups"))["items"]
    assert (newest["members"], newest["failed"], newest["row"], newest["epoch"]) == (3, 1, newest["sequence"], 0)
    assert all(0 <= group["reward_mean"] <= 1 for group in older)
    assert [group["sequence"] for group in older] == list(range(len(older) - 1, -1, -1))
    assert (await get(client, "small/groups", stage=0))["items"] == []
    backwards = (await get(client, "small/groups", order="oldest"))["items"]
    assert backwards == [*older[::-1], newest]


async def test_experiences_of_a_time_or_a_taskset(client: httpx.AsyncClient) -> None:
    rows = (await get(client, "small/experiences", limit=1000, order="oldest"))["items"]
    times = [row["produced_at"] for row in rows]
    middle = times[len(times) // 2]
    since = await walked(client, "small/experiences", 3, since=middle, order="reward")
    assert set(since) == {row["id"] for row in rows if row["produced_at"] >= middle}
    # Times of answers are in milliseconds, those of the tables in nanoseconds.
    until = await walked(client, "small/experiences", 3, until=middle)
    assert {row["id"] for row in rows if row["produced_at"] < middle} <= set(until) < {row["id"] for row in rows}
    answer = await client.get("/v1/experiments/small/experiences", params={"since": "yesterday"})
    assert (answer.status_code, answer.json()["field"]) == (422, "since")
    answer = await client.get("/v1/experiments/small/experiences", params={"taskset": "nobody's"})
    assert (answer.status_code, answer.json()["field"]) == (422, "taskset")


async def test_runs_submitted_in_a_span_of_time(client: httpx.AsyncClient) -> None:
    [row] = (await client.get("/v1/experiments")).json()["items"]
    year = datetime.fromisoformat(row["submitted_at"]).year
    before, after = (datetime(year + n, 1, 1, tzinfo=UTC).isoformat() for n in (0, 1))

    async def names(**query: str) -> list[str]:
        listed = await client.get("/v1/experiments", params=query)
        assert listed.status_code == 200, listed.text
        return [item["name"] for item in listed.json()["items"]]

    assert await names(since=before, until=after) == ["small"]
    assert await names(since=after) == []
    assert await names(until=before) == []


async def test_experiences_of_one_of_several_tasksets(parts: DaemonParts, client: httpx.AsyncClient) -> None:
    spec = spec_of("mixed", 4)
    sets = [TasksetSpec(name=name, path=f"/{name}", rows=rows) for name, rows in (("a", 2), ("b", 3), ("c", 1))]
    rft = msgspec.structs.replace(spec.stages[1], taskset=sets[0], more_tasksets=tuple(sets[1:]))
    spec = msgspec.structs.replace(spec, stages=(spec.stages[0], rft))
    run = SyntheticRun(Recorder(seed=5), name="mixed", seed=5, steps=4, faults=False, spec=spec).write()
    await parts.log.append(run.recorder.drafts)
    await parts.projector.catch_up()
    groups = {group["id"]: group["row"] for group in (await get(client, "mixed/groups"))["items"]}
    rows = (await get(client, "mixed/experiences", limit=1000))["items"]
    for name, taskset_rows in (("a", range(2)), ("b", range(2, 5)), ("c", range(5, 99))):
        chosen = {row["id"] for row in rows if groups[row["group"]] in taskset_rows}
        for order in ("newest", "reward", "-staleness"):
            assert set(await walked(client, "mixed/experiences", 5, taskset=name, order=order)) == chosen != set()
        assert set(await walked(client, "mixed/experiences", 5, taskset=name, stage=0)) == set()
