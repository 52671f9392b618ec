"""Pages of ended runs are read once, and again after any record that they show."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import text
from synthetic.daemon.daemon_parts import DaemonParts
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.http.views.ended_pages import EndedPages
from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.http.views.wire import encode, from_wire

pytestmark = pytest.mark.anyio


async def page(client: httpx.AsyncClient, name: str, after: str | None = None) -> dict[str, Any]:
    answer = await client.get(f"/v1/experiments/{name}", params={} if after is None else {"after": after})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def seed(parts: DaemonParts, number: int) -> None:
    """Changes the tables behind the daemon's back, which no record does."""
    async with parts.engine.begin() as connection:
        await connection.execute(text("UPDATE experiments SET seed = :number"), {"number": number})


async def annotated(client: httpx.AsyncClient, name: str) -> str:
    answer = await client.post(f"/v1/experiments/{name}/annotate", json={"star": True})
    position: str = answer.json()["position"]
    return position


async def test_an_ended_page_is_read_again_only_after_a_record(parts: DaemonParts, client: httpx.AsyncClient) -> None:
    first = await page(client, "small")
    await seed(parts, 77)
    assert await page(client, "small") == first
    second = await page(client, "small", await annotated(client, "small"))
    assert (second["experiment"]["seed"], second["experiment"]["summary"]["starred"]) == (77, True)
    await seed(parts, 78)
    assert await page(client, "small") == second


async def test_a_page_of_a_fork_follows_the_records_of_its_parent(
    parts: DaemonParts, client: httpx.AsyncClient
) -> None:
    fork = SyntheticRun(Recorder(seed=5), name="fork", seed=5, faults=False, parent=parts.run.id).write()
    await parts.log.append(fork.recorder.drafts)
    await parts.projector.catch_up()
    first = await page(client, "fork")
    assert first["experiment"]["parent_name"] == "small"
    await seed(parts, 77)
    assert await page(client, "fork") == first
    assert (await page(client, "fork", await annotated(client, "small")))["experiment"]["seed"] == 77


async def test_a_page_of_a_run_under_way_is_never_kept(parts: DaemonParts, client: httpx.AsyncClient) -> None:
    run = SyntheticRun(Recorder(seed=5), name="under-way", seed=5)
    run.begin()
    await parts.log.append(run.recorder.drafts)
    await parts.projector.catch_up()
    first = await page(client, "under-way")
    assert first["experiment"]["summary"]["state"] == "running"
    await seed(parts, 77)
    assert (await page(client, "under-way"))["experiment"]["seed"] == 77


async def test_the_page_read_longest_ago_is_dropped(client: httpx.AsyncClient) -> None:
    ended = from_wire(await page(client, "small"), ExperimentPage)
    pages: EndedPages[ExperimentPage] = EndedPages(most=2)
    ids = [UUID(int=number) for number in range(3)]
    for id in ids:
        pages.keep(id, ended, {id: 1})
        assert pages.of(ids[0], lambda _: 1) is not None
    assert [pages.of(id, lambda _: 1) is not None for id in ids] == [True, False, True]
    assert pages.of(ids[2], lambda _: 2) is None, "a record since"
    assert pages.body_of(ids[2], ended) == encode(ended)
