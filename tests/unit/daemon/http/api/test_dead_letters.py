"""Dead letters over HTTP: listed, shown, retried and dropped, each once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from synthetic.daemon.daemon_parts import DaemonParts
from synthetic.daemon.log_operations import LogOperations
from synthetic.log.garbage import garbage
from synthetic.until import until

from rftd.daemon.run.dlq.dead_letter_service import watch_dead_letters
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.streams.events.worker import RecordDropped
from rftd.streams.folds.letters import HOME
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer
from rftd.streams.log.deadletters import DeadLetterBox
from rftd.streams.verify.checker import verify
from rftd.streams.verify.report import VerifyReport

pytestmark = pytest.mark.anyio
CLOCK = SystemClock()


@pytest.fixture
async def failed(parts: DaemonParts) -> str:
    """The task of `small` that failed: one rollout succeeded, three did not."""
    written = len(parts.run.recorder.drafts)
    parts.run.explore(failed=3)
    await _applied(parts, parts.run.recorder.drafts[written:])
    return f"small/task/1.{parts.run.groups - 1}"


async def test_a_failed_task_is_listed_and_shown(client: httpx.AsyncClient, parts: DaemonParts, failed: str) -> None:
    listed = await _get(client)
    [letter] = listed["items"]
    assert (letter["kind"], letter["task"], letter["state"], letter["attempts"]) == ("task", failed, "open", 1)
    assert listed["open"] == 1
    assert letter["experiment"] == str(parts.run.id)
    for wanted in (letter["id"], failed, letter["group"], letter["group"][:13]):
        shown = (await client.get("/v1/dead-letters/one", params={"id": wanted})).json()
        assert shown["letter"] == letter
        assert [each["attempt"] for each in shown["tries"]] == [1]
        assert shown["record"] is None
    assert (await _get(client, experiment="small"))["items"] == [letter]


async def test_a_task_is_retried_once(client: httpx.AsyncClient, parts: DaemonParts, failed: str) -> None:
    body = {"id": failed, "by": "me", "reason": "the judge is back"}
    first = (await client.post("/v1/dead-letters/retry", json=body)).json()
    assert (first["state"], first["already"]) == ("retried", False)
    again = (await client.post("/v1/dead-letters/retry", json=body)).json()
    assert (again["already"], again["position"]) == (True, None)
    assert (await _get(client, after=first["position"]))["items"] == []
    [letter] = (await _get(client, all=True))["items"]
    assert (letter["state"], letter["by"]) == ("retried", "me")
    gone = await client.post("/v1/dead-letters/drop", json=body)
    assert gone.status_code == 409
    assert "was retried" in gone.json()["detail"]
    assert _ours(await verify(parts.log)) == []


async def test_a_task_is_dropped_with_a_reason(client: httpx.AsyncClient, parts: DaemonParts, failed: str) -> None:
    without = await client.post("/v1/dead-letters/drop", json={"id": failed})
    assert without.status_code == 422
    assert without.json()["field"] == "reason"
    body = {"id": failed, "by": "me", "reason": "the row is broken"}
    first = (await client.post("/v1/dead-letters/drop", json=body)).json()
    assert (first["state"], first["already"]) == ("dropped", False)
    assert (await client.post("/v1/dead-letters/drop", json=body)).json()["already"]
    assert (await _get(client))["items"] == []
    assert (await _get(client))["open"] == 0
    [letter] = (await _get(client, all=True))["items"]
    assert (letter["state"], letter["by"], letter["verdict"]) == ("dropped", "me", "the row is broken")
    assert _ours(await verify(parts.log)) == []


async def test_records_of_strangers(client: httpx.AsyncClient, parts: DaemonParts, tmp_path: Path) -> None:
    drafts = garbage(parts.run.id, SystemIds(CLOCK), CLOCK)
    await parts.log.append(drafts)
    writer = Writer(source="test", clock=CLOCK, ids=SystemIds(CLOCK))
    letters = DeadLetterBox(parts.log, writer, clock=CLOCK)
    engine = open_database(sqlite_url(tmp_path / "other.db"))
    await Projector(parts.log, engine, clock=CLOCK, report=letters.report).catch_up()
    await engine.dispose()
    listed = await _get(client, limit=1000)
    kinds = {letter["kind"] for letter in listed["items"]}
    assert kinds == {"record"}
    assert listed["open"] > 10
    assert len(listed["items"]) == min(listed["open"], 1000), "one page"
    refused: set[str] = set()
    for letter in listed["items"][::12]:
        shown = (await client.get("/v1/dead-letters/one", params={"id": letter["id"]})).json()
        assert shown["record"]["readable"] is False, shown
        assert "value_hex" in shown["record"], shown
        said = await client.post("/v1/dead-letters/retry", json={"id": letter["id"]})
        assert said.status_code == 409
        refused.add("role" if "written by roles" in said.json()["detail"] else said.json()["detail"][:19])
    assert refused == {"role", "it cannot be read: "}
    id = listed["items"][0]["id"]
    assert (await client.post("/v1/dead-letters/drop", json={"id": id, "reason": "seen"})).status_code == 202
    report = await verify(parts.log)
    assert {letter.place: letter.state for letter in report.dead_letters}[id] == "dropped"
    assert _ours(report) == []


async def test_the_gauge_counts_what_is_open(parts: DaemonParts, failed: str) -> None:
    def open_tasks() -> float | None:
        return parts.feed.metrics.registry.get_sample_value("rftd_dead_letters_open", {"kind": "task"})

    assert open_tasks() is None
    operations = LogOperations(parts.log)
    watching = watch_dead_letters(operations, parts.engine, parts.projector, parts.feed.metrics, CLOCK)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watching)
        await until(lambda: open_tasks() == 1.0)
        task.cancel()


async def test_what_is_refused(client: httpx.AsyncClient, failed: str) -> None:
    for wanted, status in (("rftd.tasks/0@1", 404), ("nobody/task/0.1", 404), ("abc", 404), ("x" * 501, 422)):
        assert (await client.get("/v1/dead-letters/one", params={"id": wanted})).status_code == status, wanted
    for body in ({}, {"id": failed, "other": 1}, {"id": failed, "reason": "x" * 1001}):
        assert (await client.post("/v1/dead-letters/retry", json=body)).status_code == 422, body


async def test_verify_finds_verdicts_about_nothing(parts: DaemonParts) -> None:
    writer = Writer(source="test", clock=CLOCK, ids=SystemIds(CLOCK))
    note = RecordDropped(stream=topics.EXPERIMENTS, partition=0, offset=0, reason="")
    await parts.log.append([writer.draft(note, experiment=None, partition=HOME)])
    [finding] = [each for each in (await verify(parts.log)).findings if each.rule == "verdicts-name-a-letter"]
    assert "rftd.experiments/0@0 was dropped" in finding.what


async def _get(client: httpx.AsyncClient, **parameters: Any) -> dict[str, Any]:
    answer = await client.get("/v1/dead-letters", params=parameters)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def _applied(parts: DaemonParts, drafts: list[Any]) -> None:
    for position in await parts.log.append(drafts):
        await parts.projector.wait_for(position.partition, position.offset, 10.0)


def _ours(report: VerifyReport) -> list[str]:
    """Findings of the rules about retries and verdicts."""
    rules = {"retries-have-a-cause", "verdicts-name-a-letter", "groups-close-once", "no-task-skipped"}
    return [finding.what for finding in report.findings if finding.rule in rules]
