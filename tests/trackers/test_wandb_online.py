"""W&B's library sends a run to a service: it has what `rftd steps` shows, whatever the service answers meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic.tracking.tracked import Deaths, expected, follow, follow_and_die, written
from synthetic.tracking.wandb_service import KEY, stand_in

from rftd.ops.clock import ManualClock
from rftd.ops.errors import ConfigError
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.stage_parts import TrackerSpec
from rftd.workers.tracking.cursor import CursorFile

pytest.importorskip("wandb")
pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)


def tracker_of(address: str) -> TrackerSpec:
    return TrackerSpec(kind="wandb", args={"base_url": address, "api_key": KEY})


async def test_the_service_has_every_figure_once(tmp_path: Path) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    with stand_in() as service:
        await follow_and_die(log, run, tracker_of(service.address), Deaths([]), portion=120)
        assert service.shown() == await expected("wandb", run, log)
        assert ": completed" in service.notes[f"{run.id}-trainer"]


async def test_a_service_that_refuses_or_ends_before_it_answers_loses_and_doubles_nothing(tmp_path: Path) -> None:
    # The library waits for seconds after each, whatever it is told: MLflow's test has 500 of them.
    due: list[int] = [429, 0, 503, 0, 429, 503]

    def troubled(path: str) -> int | None:
        return due.pop() if due and path.endswith("file_stream") else None

    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    with stand_in(troubled) as service:
        await follow(log, run, tracker_of(service.address))
        assert service.shown() == await expected("wandb", run, log)
    assert due == []


async def test_a_service_that_is_away_at_the_beginning_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "5")
    clock = ManualClock()
    back_s = clock.monotonic_s() + 0.5
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    with stand_in(lambda path: 503 if clock.monotonic_s() < back_s else None) as service:
        await follow(log, run, tracker_of(service.address), clock=clock)
        assert service.shown() == await expected("wandb", run, log)
    assert clock.monotonic_s() >= back_s, "the first attempt was in vain"


@pytest.mark.parametrize("status", [401, 403])
async def test_a_wrong_key_ends_the_tracker_and_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "5")
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    with stand_in(lambda path: status) as service, pytest.raises(ConfigError) as refusal:
        await follow(log, run, tracker_of(service.address))
    assert "WANDB_API_KEY" in str(refusal.value)
    assert KEY not in str(refusal.value)
    cursor = CursorFile(tmp_path, "wandb", str(run.id)[:8]).read()
    assert cursor.error and KEY not in cursor.error
