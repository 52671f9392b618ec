"""Dry runs of commands: refused as the command is, answered by their consequence, and never recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from synthetic.daemon.idle_supervisor import client_of, file_of

from rftd.streams.memory import MemoryLog
from rftd.workers.devices.host import ANY_HOST

pytestmark = pytest.mark.anyio

DRY = {"dry_run": "true"}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "a pause of a queued one": ("/v1/experiments/first/pause", {}),
    "a resume of a queued one": ("/v1/experiments/first/resume", {}),
    "a command to nobody": ("/v1/experiments/nobody/cancel", {}),
    "an archive before the end": ("/v1/experiments/first/archive", {}),
    "a restore of files in place": ("/v1/experiments/first/restore", {}),
    "a removal before the end": ("/v1/experiments/first/remove", {}),
    "a relative archive": ("/v1/experiments/first/archive", {"to": "a/b"}),
    "a fork at a step not reached": ("/v1/experiments/first/fork", {"at_step": 9}),
    "a fork before the beginning": ("/v1/experiments/first/fork", {"at_step": 0}),
    "a fork under a field unknown": ("/v1/experiments/first/fork", {"at_step": 0, "set": ["buffer.sise=3"]}),
    "a note without content": ("/v1/experiments/first/annotate", {}),
    "tasks for a run without a queue": ("/v1/experiments/first/tasks", {"tasks": [{"question": "1"}]}),
    "the end of no queue": ("/v1/experiments/first/tasks/end", {}),
    "a letter unknown": ("/v1/dead-letters/retry", {"id": "rftd.tasks/0@7"}),
    "a sweep unknown": ("/v1/sweeps/nothing/cancel", {}),
    "a submission in use": ("/v1/experiments", {"config": {"name": "used"}}),
}


@pytest.fixture
async def log() -> AsyncIterator[MemoryLog]:
    opened = MemoryLog()
    yield opened
    await opened.close()


@pytest.fixture
async def client(tmp_path: Path, log: MemoryLog) -> AsyncIterator[httpx.AsyncClient]:
    """The API over two queued experiments, `first` and `second`."""
    async with client_of(tmp_path, log, ANY_HOST) as opened:
        for name in ("first", "second"):
            answer = await opened.post("/v1/experiments", json={"config": file_of(tmp_path, {"name": name})})
            assert answer.status_code == 202, answer.text
        yield opened


async def rehearsed(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The consequence of a command; the log is as before."""
    answer = await client.post(path, json=body, params=DRY)
    assert answer.status_code == 200, answer.text
    consequence: dict[str, Any] = answer.json()
    return consequence


async def test_a_rehearsal_is_refused_as_its_command_and_nothing_is_recorded(
    client: httpx.AsyncClient, tmp_path: Path, log: MemoryLog
) -> None:
    before = await log.heads()
    differences: dict[str, object] = {}
    for case, (path, body) in REFUSED.items():
        content = body | ({"config": file_of(tmp_path, body["config"])} if "config" in body else {})
        dry = await client.post(path, json=content, params=DRY)
        real = await client.post(path, json=content)
        if real.status_code < 400 or (dry.status_code, dry.json()) != (real.status_code, real.json()):
            differences[case] = (dry.text, real.text)
    assert differences == {}
    assert await log.heads() == before


async def test_a_submission_says_its_turn_and_its_steps(
    client: httpx.AsyncClient, tmp_path: Path, log: MemoryLog
) -> None:
    before = await log.heads()
    told = await rehearsed(client, "/v1/experiments", {"config": file_of(tmp_path, {"name": "third"})})
    assert told["name"] == "third"
    assert told["figures"] == {"queue_position": 3, "free_slots": 1, "slots": 1, "steps": 5}
    assert "behind first, second" in told["sentence"]
    urgent = file_of(tmp_path, {"name": "urgent", "priority": 9})
    told = await rehearsed(client, "/v1/experiments", {"config": urgent})
    assert told["sentence"] == "a new experiment of 5 steps; starts at once: 1 of 1 slots are free"
    assert await log.heads() == before


async def test_a_priority_says_both_places_in_the_queue_and_the_command_keeps_the_promise(
    client: httpx.AsyncClient, log: MemoryLog
) -> None:
    before = await log.heads()
    told = await rehearsed(client, "/v1/experiments/second/prioritize", {"priority": 3})
    assert (told["figures"]["queue_position"], told["figures"]["former_position"]) == (1, 2)
    assert await log.heads() == before
    real = await client.post("/v1/experiments/second/prioritize", json={"priority": 3})
    assert real.status_code == 202, real.text
    told = await rehearsed(client, "/v1/experiments/first/prioritize", {"priority": 0})
    assert (told["figures"]["queue_position"], told["figures"]["former_position"]) == (2, 2)


async def test_notes_and_cancels_are_said_in_a_sentence(client: httpx.AsyncClient, log: MemoryLog) -> None:
    before = await log.heads()
    note = {"note": "good", "star": True, "labels": {"a": "b"}}
    told = await rehearsed(client, "/v1/experiments/first/annotate", note)
    assert told["sentence"] == (
        "adds a note of 4 characters, sets the star, replaces all labels by a=b on the experiment"
    )
    told = await rehearsed(client, "/v1/experiments/first/cancel", {})
    assert told["sentence"] == "leaves the queue and ends for good; its recorded events and files stay"
    assert await log.heads() == before


async def test_every_command_with_an_effect_has_a_dry_run(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    without: list[str] = []
    for path, operations in document["paths"].items():
        post = operations.get("post", {})
        if "202" not in post.get("responses", {}):
            continue
        names = {parameter["name"] for parameter in post["parameters"]}
        schema = post["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("schema", {})
        if "dry_run" not in names or not schema.get("$ref", "").endswith("/Consequence"):
            without.append(path)
    assert without == []


async def test_a_dry_run_of_a_check_is_an_unknown_parameter(client: httpx.AsyncClient, tmp_path: Path) -> None:
    body = {"config": file_of(tmp_path, {"name": "third"})}
    answer = await client.post("/v1/experiments/check", json=body, params=DRY)
    assert answer.status_code == 422
