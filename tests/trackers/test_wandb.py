"""Weights & Biases offline: its record files, by run id and step, have what `rftd steps` shows."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from synthetic.tracking.tracked import Deaths, expected, follow, follow_and_die, written
from synthetic.tracking.wandb_files import records_of, shown_in

from rftd.streams.memory import MemoryLog
from rftd.streams.spec.stage_parts import TrackerSpec

pytest.importorskip("wandb")
pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")


async def test_the_record_files_have_every_figure(tmp_path: Path) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    await follow(log, run, TrackerSpec(kind="wandb"))
    folder = tmp_path / "monitor" / "wandb"
    assert shown_in(folder) == await expected("wandb", run, log)
    (path,) = folder.glob("wandb/offline-run-*-trainer/run-*.wandb")
    begun, *_ = (record.run for record in records_of(path) if record.WhichOneof("record_type") == "run")
    assert (begun.project, begun.run_group, begun.display_name) == ("p", "small", "small_trainer")
    config = {entry.key: json.loads(entry.value_json) for entry in begun.config.update}
    assert config["name"] == "small"
    notes = [record.run.notes for record in records_of(path) if record.WhichOneof("record_type") == "run"][-1]
    assert "step 0: started" in notes
    assert ": completed" in notes


async def test_a_follower_that_dies_loses_no_row(tmp_path: Path) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    deaths = Deaths(random.Random(1).sample(range(1, 40), 20))
    await follow_and_die(log, run, TrackerSpec(kind="wandb"), deaths, portion=60)
    assert deaths.count == 20
    assert shown_in(tmp_path / "monitor" / "wandb") == await expected("wandb", run, log)
