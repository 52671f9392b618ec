"""Numbers and texts beyond what a table, a browser or a record holds are refused as the document says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from starlette.types import Message
from synthetic.daemon.daemon_parts import DaemonParts

from rftd.daemon.http.api.problem import refusal
from rftd.ops.bound_socket import bind
from rftd.ops.http_server import serving_http

pytestmark = pytest.mark.anyio
HUGE = 10**30
SMALL = "/v1/experiments/small"


def refused(answer: httpx.Response, field: str) -> None:
    """A problem with the request."""
    assert answer.status_code == 422, (answer.status_code, answer.text)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["field"] == field


@pytest.mark.parametrize("number", [2**53, 2**63, 2**64, HUGE, -1, -HUGE])
async def test_whole_numbers_beyond_the_tables_are_refused(client: httpx.AsyncClient, number: int) -> None:
    refused(await client.get(f"{SMALL}/batches/{number}"), "step")
    for path, field in (
        (f"{SMALL}/steps", "first"),
        (f"{SMALL}/steps", "last"),
        (f"{SMALL}/experiences", "row"),
        (f"{SMALL}/experiences", "first_step"),
        (f"{SMALL}/experiences", "min_staleness"),
        (f"{SMALL}/lengths", "stage"),
    ):
        refused(await client.get(path, params={field: str(number)}), field)


async def test_the_largest_numbers_of_the_document_are_answered(client: httpx.AsyncClient) -> None:
    most = 2**53 - 1
    assert (await client.get(f"{SMALL}/batches/{most}")).status_code == 404
    for path, field in ((f"{SMALL}/steps", "first"), (f"{SMALL}/experiences", "row"), (f"{SMALL}/lengths", "stage")):
        assert (await client.get(path, params={field: str(most)})).status_code == 200


async def test_names_and_words_have_bounds(client: httpx.AsyncClient) -> None:
    refused(await client.get(f"/v1/experiments/{'n' * 501}"), "name")
    assert (await client.get(f"/v1/experiments/small@{'9' * 400}")).status_code == 404
    refused(await client.get(f"{SMALL}/evals", params={"taskset": "a\x00b"}), "taskset")
    refused(await client.get(f"{SMALL}/experiences", params={"state": "tired"}), "state")
    refused(await client.get(f"{SMALL}/experiences", params={"order": "random"}), "order")
    refused(await client.post(f"{SMALL}/cancel", headers={"Idempotency-Key": ""}), "Idempotency-Key")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (f"{SMALL}/fork", {"at_step": 2**64}, "at_step"),
        (f"{SMALL}/fork", {"at_step": HUGE}, "at_step"),
        (f"{SMALL}/fork", {"at_step": -1}, "at_step"),
        (f"{SMALL}/prioritize", {"priority": HUGE}, "priority"),
        (f"{SMALL}/prioritize", {"priority": -1_000_001}, "priority"),
        (f"{SMALL}/prioritize", {}, "priority"),
        (f"{SMALL}/cancel", {"reason": "r" * 1001}, "reason"),
        (f"{SMALL}/archive", {"to": "t" * 5000}, "to"),
        ("/v1/dead-letters/retry", {"id": " "}, "id"),
        ("/v1/dead-letters/drop", {"id": "small/task/1.0"}, "reason"),
        ("/v1/dead-letters/drop", {"id": "small/task/1.0", "reason": " \n"}, "reason"),
    ],
)
async def test_bodies_have_bounds(client: httpx.AsyncClient, path: str, body: dict[str, Any], field: str) -> None:
    refused(await client.post(path, json=body), field)


@pytest.mark.parametrize(
    ("tasks", "status", "fix"),
    [
        ([{"question": "1"}] * 1001, 422, "send 1000 at most in one request, and the others in further ones"),
        ([{"question": "1" * 5000}] * 1000, 413, "many tasks are added by several requests (rftd tasks add FILE)"),
    ],
    ids=["too many", "too large"],
)
async def test_more_tasks_than_a_request_takes_are_refused_with_a_way_to_add_them(
    client: httpx.AsyncClient, tasks: list[dict[str, str]], status: int, fix: str
) -> None:
    answer = await client.post(f"{SMALL}/tasks", json={"tasks": tasks})
    assert answer.status_code == status, answer.text
    assert fix in answer.text


async def test_an_experience_takes_no_endless_priority(client: httpx.AsyncClient) -> None:
    [row] = (await client.get(f"{SMALL}/experiences", params={"limit": 1})).json()["items"]
    refused(await client.post(f"{SMALL}/experiences/{row['id']}/prioritize", json={"priority": 1e300}), "priority")


async def test_a_method_that_a_path_has_not_names_those_that_it_has(client: httpx.AsyncClient) -> None:
    answer = await client.put("/v1/experiments", json={})
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, POST"
    assert answer.json()["code"] == "RFTD-API-004"


@pytest.mark.parametrize("path", ["/livez", "/v1/experiments", SMALL, "/openapi.json", "/metrics"])
async def test_head_is_get_without_its_body(client: httpx.AsyncClient, path: str) -> None:
    whole, head = await client.get(path), await client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]
    missing = await client.head("/v1/experiments/none")
    assert (missing.status_code, missing.content) == (404, b"")


async def test_the_head_of_a_stream_ends_at_once(client: httpx.AsyncClient) -> None:
    head = await client.head(f"{SMALL}/stream")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"].startswith("text/event-stream")


async def test_options_names_the_methods_of_a_path(client: httpx.AsyncClient) -> None:
    for path, allowed in (("/v1/experiments", "GET, HEAD, OPTIONS, POST"), ("/livez", "GET, HEAD, OPTIONS")):
        answer = await client.options(path)
        assert (answer.status_code, answer.headers["allow"], answer.content) == (204, allowed, b"")
    for path in (f"{SMALL}/cancel", "/v1/experiments/check"):
        assert (await client.options(path)).headers["allow"] == "OPTIONS, POST"
    assert (await client.head(f"{SMALL}/cancel")).status_code == 405
    assert (await client.options("/nowhere")).status_code in (404, 405)


async def test_the_document_says_what_probes_and_the_stream_send(client: httpx.AsyncClient, parts: DaemonParts) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    for probe in ("/livez", "/readyz"):
        for status in ("200", "503"):
            assert set(paths[probe]["get"]["responses"][status]["content"]) == {"application/json", "text/plain"}
    stream = paths["/v1/experiments/{name}/stream"]["get"]["responses"]["200"]["content"]["text/event-stream"]
    async with client.stream("GET", f"{SMALL}/stream") as answer:
        text = "".join([part async for part in answer.aiter_text()])
    events = [dict(line.split(": ", 1) for line in part.split("\n")) for part in text.strip().split("\n\n")]
    for event in events:
        assert set(stream["itemSchema"]["required"]) <= set(event) <= set(stream["itemSchema"]["properties"])
        assert event["event"] in stream["itemSchema"]["properties"]["event"]["enum"]


async def test_what_a_request_may_leave_out_is_not_required(client: httpx.AsyncClient) -> None:
    schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    assert "required" not in schemas["Reason"] or schemas["Reason"]["required"] == []
    assert schemas["Submit"]["required"] == ["config"]
    assert schemas["Drop"]["required"] == ["id", "reason"]
    assert schemas["Receipt"]["required"] == ["event", "id", "position"]


async def test_what_is_no_http_is_a_problem_too(parts: DaemonParts) -> None:
    bound = bind("127.0.0.1", 0)
    async with asyncio.timeout(60), serving_http(parts.app, bound, refusal=refusal):
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        writer.write(b"GET\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert b"\r\ncontent-type: application/problem+json\r\n" in head
    problem = json.loads(body)
    assert (problem["status"], problem["title"], problem["code"]) == (400, "Bad Request", "RFTD-USE-001")


async def test_nobody_is_answered_whose_body_ends_before_its_end(parts: DaemonParts) -> None:
    """A crowd that is shown out in the middle of its bodies must cost little."""
    sent: list[Message] = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/experiments",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-length", b"100")],
    }
    body = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Message:
        return next(body)

    async def send(message: Message) -> None:
        sent.append(message)

    await parts.app(scope, receive, send)
    assert [(message["type"], message["status"]) for message in sent] == [("http.response.start", 422)]
