"""SwanLab offline: its record files, by run and step, have what `rftd steps` shows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml
from synthetic.tracking.swanlab_files import records_of, shown_in
from synthetic.tracking.tracked import Deaths, expected, follow, follow_and_die, written

from rftd.ops.errors import ConfigError
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.stage_parts import TrackerSpec

pytest.importorskip("swanlab")
pytestmark = pytest.mark.anyio
OFFLINE = TrackerSpec(kind="swanlab", args={"mode": "offline", "tags": ["mine"], "experiment_name": "named"})


async def test_the_record_files_have_every_figure(tmp_path: Path) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    await follow(log, run, OFFLINE)
    folder = tmp_path / "monitor" / "swanlab"
    assert shown_in(folder) == await expected("swanlab", run, log)
    (path,) = folder.glob("run-*trainer/run-*.swanlab")
    (begun,) = (record.start for record in records_of(path) if record.WhichOneof("record_type") == "start")
    assert (begun.project, begun.group, begun.name, list(begun.tags)) == (
        *("p", "small", "named_trainer"),
        ["mine", "trainer"],
    )
    config = yaml.safe_load((path.parent / "files" / "config.yaml").read_text())
    assert config["name"]["value"] == "small"
    remarks = config["rftd_remarks"]["value"]
    assert remarks[0].endswith(": started")
    assert any(remark.endswith(": completed") for remark in remarks)


async def test_a_follower_that_dies_loses_no_figure_and_no_remark(tmp_path: Path) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    deaths = Deaths(random.Random(6).sample(range(1, 40), 20))
    await follow_and_die(log, run, OFFLINE, deaths, portion=60)
    assert deaths.count == 20
    folder = tmp_path / "monitor" / "swanlab"
    assert shown_in(folder) == await expected("swanlab", run, log)


async def test_one_run_has_both(tmp_path: Path) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    await follow(log, run, TrackerSpec(kind="swanlab", args={"mode": "offline"}, single_run=True))
    assert shown_in(tmp_path / "monitor" / "swanlab") == await expected("swanlab", run, log, single_run=True)


async def test_a_missing_key_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWANLAB_ROOT", str(tmp_path))
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    with pytest.raises(ConfigError, match="SwanLab begins no run"):
        await follow(log, run, TrackerSpec(kind="swanlab"))
