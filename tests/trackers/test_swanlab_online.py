"""SwanLab's library sends a run to a service: it has what `rftd steps` shows, whatever the service answers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from synthetic.tracking.swanlab_service import KEY, SwanLabStandIn, swanlab_stand_in
from synthetic.tracking.tracked import Deaths, expected, follow, follow_and_die, written

from rftd.ops.errors import ConfigError
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.stage_parts import TrackerSpec
from rftd.workers.tracking.cursor import CursorFile

pytest.importorskip("swanlab")
pytestmark = pytest.mark.anyio
ONLINE = TrackerSpec(kind="swanlab")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key in a variable, and a home in which nobody is logged in."""
    monkeypatch.delenv("SWANLAB_MODE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWANLAB_API_KEY", KEY)


def sent_to(service: SwanLabStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SWANLAB_API_HOST", "SWANLAB_WEB_HOST"):
        monkeypatch.setenv(name, service.address)


async def test_the_service_has_every_figure_and_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    with swanlab_stand_in() as service:
        sent_to(service, monkeypatch)
        await follow(log, run, ONLINE)
        assert service.shown() == await expected("swanlab", run, log)
    assert service.keys == {KEY}
    assert set(service.states.values()) == {"FINISHED"}
    remarks = service.config[f"{run.id}-trainer"]["rftd_remarks"]["value"]
    assert remarks[0].endswith(": started")
    assert any(remark.endswith(": completed") for remark in remarks)


async def test_a_follower_that_dies_loses_and_changes_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    deaths = Deaths(random.Random(6).sample(range(1, 40), 5))
    with swanlab_stand_in() as service:
        sent_to(service, monkeypatch)
        await follow_and_die(log, run, ONLINE, deaths, portion=60)
        assert deaths.count == 5
        assert service.shown() == await expected("swanlab", run, log)
    assert not service.changed


async def test_a_service_that_refuses_or_ends_before_it_answers_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    due: list[int] = [429, 0, 503, 0, 429, 503]

    def troubled(path: str) -> int | None:
        return due.pop() if due and path.endswith("/house/metrics") else None

    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    with swanlab_stand_in(troubled) as service:
        sent_to(service, monkeypatch)
        await follow(log, run, ONLINE)
        assert service.shown() == await expected("swanlab", run, log)
    assert due == []
    assert not service.changed


@pytest.mark.parametrize("status", [401, 403])
async def test_a_wrong_key_ends_the_tracker_and_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    with swanlab_stand_in(lambda path: status) as service:
        sent_to(service, monkeypatch)
        with pytest.raises(ConfigError) as refusal:
            await follow(log, run, ONLINE)
    assert "SWANLAB_API_KEY" in str(refusal.value)
    assert KEY not in str(refusal.value)
    assert KEY not in CursorFile(tmp_path, "swanlab", str(run.id)[:8]).read().error
