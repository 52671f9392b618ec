"""Alerts: which changes are told, with the figures around them; a receiver that fails, is slow, or stays away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from synthetic.daemon.daemon_parts import DaemonParts, open_daemon
from synthetic.daemon.stranger import Said, Stranger, stranger_at_work
from synthetic.until import until

from rftd.daemon.http.views.wire import encode
from rftd.daemon.run.supervisor.disk_guard import DiskGuard, DiskLimits
from rftd.daemon.serve.alert import Alert, AlertsFile
from rftd.daemon.serve.alerts import MOST_WAITING, Alerts, _Outbox, checked_alert_url
from rftd.ops.clock import SystemClock
from rftd.ops.errors import UsageError
from rftd.ops.logs import logger
from rftd.storage.files.disk import LocalDisk
from rftd.workers.control.hold import Obstacle

pytestmark = pytest.mark.anyio


class Hurried(SystemClock):
    """A clock whose pauses are over at once, and remembered."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def receiver() -> Iterator[Stranger]:
    with stranger_at_work() as at_work:
        at_work.answers = [Said(200)]
        yield at_work


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[DaemonParts]:
    async with open_daemon(tmp_path) as opened:
        yield opened


def alerts_of(
    parts: DaemonParts, receiver: Stranger, folder: Path, file: Path | None = None
) -> tuple[Alerts, DiskGuard]:
    clock = Hurried()
    guard = DiskGuard(LocalDisk(), folder, DiskLimits(), clock=clock, logger=logger())
    urls = [f"{receiver.url}/hook?token=s3cret"]
    return Alerts(
        urls, parts.engine, parts.operations, guard, clock=clock, logger=logger(), file=AlertsFile(file)
    ), guard


async def become(parts: DaemonParts, **columns: object) -> None:
    async with parts.engine.begin() as connection:
        assignments = ", ".join(f"{name} = :{name}" for name in columns)
        await connection.execute(text(f"UPDATE experiments SET {assignments}"), columns)


async def test_each_change_of_a_run_is_told_once_with_its_figures(
    parts: DaemonParts, receiver: Stranger, tmp_path: Path
) -> None:
    alerts, guard = alerts_of(parts, receiver, tmp_path)
    await become(parts, state="running")
    await alerts.look()
    await become(parts, signal_cause="solved", signal_reason="every answer is right", signal_step=2)
    await alerts.look()
    await become(parts, signal_cause="equal_rewards", signal_reason="all rewards are equal", signal_step=3)
    await alerts.look()
    await alerts.look()
    await become(parts, signal_cause="", signal_reason="", signal_step=None)
    await alerts.look()
    guard.shortage = Obstacle(cause="disk_full", reason="1 MB is free", fix="free some")
    await alerts.look()
    await become(parts, state="failed", state_reason="it broke", state_code="RFTD-X")
    await alerts.look()
    [outbox] = alerts._outboxes
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(outbox.run())
        await until(lambda: len(receiver.bodies) == 4)
        sending.cancel()
    told = [json.loads(body) for body in receiver.bodies]
    assert [alert["kind"] for alert in told] == ["signal_lost", "signal_regained", "disk", "failed"]
    assert told[0]["text"] == "small lost its learning signal at step 3: all rewards are equal"
    assert told[0]["experiment"]["name"] == "small"
    assert told[0]["steps"][-1]["metrics"]
    assert told[2]["text"] == "1 MB is free"
    assert told[3]["text"] == "small failed: RFTD-X: it broke"


async def test_runs_that_ended_before_the_daemon_began_are_not_told(
    parts: DaemonParts, receiver: Stranger, tmp_path: Path
) -> None:
    alerts, _ = alerts_of(parts, receiver, tmp_path)
    await alerts.look()
    await alerts.look()
    [outbox] = alerts._outboxes
    assert not outbox.waiting


async def test_an_end_and_an_alert_not_taken_are_told_by_the_next_daemon(
    parts: DaemonParts, receiver: Stranger, tmp_path: Path
) -> None:
    file = tmp_path / "alerts.json"
    alerts, _ = alerts_of(parts, receiver, tmp_path, file)
    await become(parts, state="running")
    await alerts.look()
    await become(parts, signal_cause="equal_rewards", signal_reason="all rewards are equal", signal_step=3)
    await alerts.look()
    await alerts._save()
    await become(parts, state="failed", state_reason="it broke", state_code="RFTD-X")
    later, _ = alerts_of(parts, receiver, tmp_path, file)
    await later.look()
    [outbox] = later._outboxes
    assert [alert.kind for alert in outbox.waiting] == ["signal_lost", "failed"]
    assert "s3cret" not in file.read_text()
    listed = later.listed()
    assert [line.kind for line in listed.items] == ["failed", "signal_lost"]
    assert {line.experiment for line in listed.items} == {str(parts.run.id)}
    assert [(receiver.host, receiver.waiting, receiver.dropped) for receiver in listed.receivers] == [
        ("127.0.0.1", 2, 0)
    ]
    assert "s3cret" not in encode(listed).decode()
    file.write_text("damaged")
    anew, _ = alerts_of(parts, receiver, tmp_path, file)
    assert not anew._outboxes[0].waiting


async def test_a_run_begun_and_ended_between_two_looks_is_told_once(
    parts: DaemonParts, receiver: Stranger, tmp_path: Path
) -> None:
    alerts, _ = alerts_of(parts, receiver, tmp_path)
    await become(parts, state_ns=1)
    await alerts.look()
    await become(parts, state_ns=2)
    await alerts.look()
    await alerts.look()
    assert [alert.kind for alert in alerts._outboxes[0].waiting] == ["completed"]


async def test_a_failing_receiver_is_asked_again_and_then_passed_over(receiver: Stranger) -> None:
    receiver.answers = [Said(503), Said(302, headers={"Location": "http://127.0.0.1:9/"}), Said(200)]
    clock = Hurried()
    outbox = _Outbox(f"{receiver.url}/hook", clock=clock, logger=logger())
    outbox.add(Alert(id="a", kind="disk", text="first", time_ns=0))
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(outbox.run())
        await until(lambda: not outbox.waiting)
        assert clock.slept == [1.0, 5.0]
        receiver.answers = [Said(500)]
        outbox.add(Alert(id="a", kind="disk", text="second", time_ns=0))
        await until(lambda: not outbox.waiting)
        receiver.answers = [Said(200)]
        outbox.add(Alert(id="a", kind="disk", text="third", time_ns=0))
        await until(lambda: not outbox.waiting)
        sending.cancel()
    last = json.loads(receiver.bodies[-1])
    assert (last["text"], last["dropped"]) == ("third", 1)


async def test_alerts_for_a_receiver_that_stays_away_are_bounded() -> None:
    outbox = _Outbox("http://127.0.0.1:9/", clock=Hurried(), logger=logger())
    for number in range(MOST_WAITING + 7):
        outbox.add(Alert(id="a", kind="disk", text=str(number), time_ns=0))
    assert len(outbox.waiting) == MOST_WAITING
    assert outbox.dropped == 7
    assert outbox.waiting[0].text == "7"


async def test_the_address_of_a_receiver_is_not_in_the_log(
    receiver: Stranger, capsys: pytest.CaptureFixture[str]
) -> None:
    outbox = _Outbox("http://127.0.0.1:9/hook/s3cret", clock=Hurried(), logger=logger())
    outbox.add(Alert(id="a", kind="disk", text="x", time_ns=0))
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(outbox.run())
        await until(lambda: not outbox.waiting)
        sending.cancel()
    said = capsys.readouterr()
    assert "s3cret" not in said.out + said.err


@pytest.mark.parametrize("url", ["ftp://a", "hook", "http://", "http://a:x", "file:///etc/passwd"])
def test_an_impossible_address_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        checked_alert_url(url)
    assert url not in str(raised.value)
