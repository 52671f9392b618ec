"""Changes of a page: sent once for all listeners, only what is new, also after an interruption; ETags and gzip."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from synthetic.daemon.daemon_parts import DaemonParts
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.http.api import live_page
from rftd.daemon.http.api.app import make_app
from rftd.daemon.http.api.live_page import PageVersion, parts_of
from rftd.daemon.http.client.connection import PageState
from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.http.views.wire import from_wire
from rftd.ops.bound_socket import bind, url_of
from rftd.ops.http_server import serving_http

pytestmark = pytest.mark.anyio
PATH = "/v1/experiments/busy/stream"


@pytest.fixture
async def busy(parts: DaemonParts) -> SyntheticRun:
    """A run under way, named `busy`."""
    run = SyntheticRun(Recorder(seed=3), name="busy", seed=3, steps=9).warmed_up()
    run.explore()
    run.train()
    await add(parts, run, 0)
    return run


async def add(parts: DaemonParts, run: SyntheticRun, written: int) -> int:
    await parts.log.append(run.recorder.drafts[written:])
    await parts.projector.catch_up()
    return len(run.recorder.drafts)


class Listener:
    """One listener of the stream."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.state = PageState()

    async def event(self) -> tuple[str, dict[str, Any]]:
        """The next event and its data, added to the state."""
        kind = id = ""
        async for line in self._lines:
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("id: "):
                id = line.removeprefix("id: ")
            elif line.startswith("data: "):
                data = line.removeprefix("data: ")
                if kind != "end":
                    self.page = json.loads(self.state.renew(kind, id, data.encode()))
                content = json.loads(data)
                return kind, content
        raise AssertionError("the stream has ended")


async def test_a_listener_gets_the_page_once_and_then_what_is_new(parts: DaemonParts, busy: SyntheticRun) -> None:
    written = len(busy.recorder.drafts)
    bound = bind("127.0.0.1", 0)
    async with (
        asyncio.timeout(120),
        serving_http(parts.app, bound),
        httpx.AsyncClient(base_url=url_of(bound)) as client,
    ):
        async with client.stream("GET", PATH) as answer:
            assert "content-encoding" not in answer.headers
            listener = Listener(answer.aiter_lines())
            assert (await listener.event())[0] == "page"
            busy.explore()
            busy.explore()
            busy.train()
            written = await add(parts, busy, written)
            kind, data = await listener.event()
            while listener.page["experiment"]["summary"]["step"] < 4:  # the tables may show a part of it first
                kind, data = await listener.event()
            assert kind == "change"
            assert "experiment.config" not in data["set"]
            assert len(json.dumps(data)) < len(json.dumps(listener.page))
            page = (await client.get("/v1/experiments/busy")).json()
            assert listener.page == page
            id = listener.state.id
        # The daemon is another one, over the same tables.
        again = make_app(
            operations=parts.operations, log=parts.log, engine=parts.engine, projector=parts.projector, feed=parts.feed
        )
        busy.explore()
        busy.finish()
        await add(parts, busy, written)
        restarted = bind("127.0.0.1", 0)
        async with serving_http(again, restarted), httpx.AsyncClient(base_url=url_of(restarted)) as client:
            async with client.stream("GET", PATH, headers={"Last-Event-ID": id}) as answer:
                listener.__init__(answer.aiter_lines())  # type: ignore[misc]
                listener.state._page, listener.state.id = page, id
                kind, data = await listener.event()
                assert kind == "change"
                assert not {"experiment.config", "reward_curve", "evals"} & set(data["set"])
                assert (await listener.event())[0] == "end"
            assert listener.page == (await client.get("/v1/experiments/busy")).json()
        restarted.close()
    bound.close()


async def test_a_listener_with_the_newest_state_gets_only_the_end(client: httpx.AsyncClient) -> None:
    path = "/v1/experiments/small/stream"
    page, end, _ = (await client.get(path)).text.split("\n\n")
    id = page.splitlines()[1].removeprefix("id: ")
    again = (await client.get(path, headers={"Last-Event-ID": id})).text
    assert again == f"{end}\n\n"
    for foreign in ("x" * len(id), id[:-1], "7", "\u00e9"):
        answer = (await client.get(path, headers={"Last-Event-ID": foreign.encode()})).text
        assert answer.startswith("event: page"), foreign


async def test_ten_listeners_cost_one_reading(
    parts: DaemonParts, busy: SyntheticRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[object] = []
    read = live_page.page_of

    async def counted(*arguments: Any, **options: Any) -> ExperimentPage:
        reads.append(arguments)
        return await read(*arguments, **options)

    monkeypatch.setattr(live_page, "page_of", counted)
    bound = bind("127.0.0.1", 0)
    async with (
        asyncio.timeout(120),
        serving_http(parts.app, bound),
        httpx.AsyncClient(base_url=url_of(bound)) as client,
    ):

        async def listen() -> dict[str, Any]:
            async with client.stream("GET", PATH) as answer:
                listener = Listener(answer.aiter_lines())
                assert (await listener.event())[0] == "page"
                return listener.page

        pages = await asyncio.gather(*(listen() for _ in range(10)))
    bound.close()
    assert len(reads) <= 2, "two where they came half a second apart"
    assert all(page == pages[0] for page in pages)
    assert busy.name == "busy"


async def test_longer_lists_are_sent_by_their_ends(client: httpx.AsyncClient) -> None:
    page = from_wire((await client.get("/v1/experiments/small")).json(), ExperimentPage)
    longer = msgspec.structs.replace(page, evals=[*page.evals, page.evals[0]])
    first = PageVersion(1, page, None)
    second = PageVersion(2, longer, first)
    event = second.event_after(1, first.id)
    assert event is not None
    data = json.loads(event.decode().splitlines()[2].removeprefix("data: "))
    assert data["set"] == {}
    assert data["ends"]["evals"]["from"] == len(page.evals)
    assert data["ends"]["evals"]["items"] == parts_of(longer)["evals"][-1:]
    moved = msgspec.structs.replace(longer, evals=longer.evals[1:])
    event = PageVersion(3, moved, second).event_after(2, second.id)
    assert event is not None
    data = json.loads(event.decode().splitlines()[2].removeprefix("data: "))
    assert data["ends"]["evals"] == {"drop": 1, "from": len(page.evals), "items": []}


async def test_an_unchanged_answer_is_not_sent_again(client: httpx.AsyncClient, parts: DaemonParts) -> None:
    first = await client.get("/v1/experiments/small/steps")
    etag = first.headers["etag"]
    again = await client.get("/v1/experiments/small/steps", headers={"If-None-Match": f'"other", {etag}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == etag
    other = await client.get("/v1/experiments/small/evals", headers={"If-None-Match": etag})
    assert other.status_code == 200
    page = await client.get("/v1/experiments/small")
    unchanged = await client.get("/v1/experiments/small", headers={"If-None-Match": page.headers["etag"]})
    assert unchanged.status_code == 304, "an ended run's page stays the same"
    assert parts.run.name == "small"


async def test_long_answers_are_compressed_for_clients_that_accept_it(client: httpx.AsyncClient) -> None:
    plain = await client.get("/v1/experiments/small", headers={"Accept-Encoding": "identity"})
    packed = await client.get("/v1/experiments/small", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(plain.content) / 2
    assert packed.json() == plain.json()
