"""The packages' own readers find the answers of evaluations as tables, or as texts where there are no tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from synthetic.log.synthetic_run import SyntheticRun
from synthetic.tracking import mlflow_runs, swanlab_files, trackio_runs, wandb_files
from synthetic.tracking.tracked import answered, expected, follow

from rftd.streams.memory import MemoryLog
from rftd.streams.spec.stage_parts import TrackerSpec
from rftd.workers.tracking.points import SAMPLES

for package in ("wandb", "mlflow", "swanlab", "trackio"):
    pytest.importorskip(package)
pytestmark = pytest.mark.anyio
HELD: str = f"{SAMPLES}/eval/held_out"
COLUMNS = ["row", "prompt", "answer", "reward", "tokens", "finish", "truth"]
ROW_1 = [1, "1+1=", "\x1b[31m2", 1.0, 6, "stop", "2"]
"""The answer to row 1 of a version that answers it right."""


@pytest.fixture
async def run(tmp_path: Path) -> SyntheticRun:
    return answered(tmp_path)


async def tracked(run: SyntheticRun, tracker: TrackerSpec) -> MemoryLog:
    """The log of the run, which this tracker has shown."""
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    await follow(log, run, tracker)
    return log


async def test_wandb_has_tables(run: SyntheticRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    log = await tracked(run, TrackerSpec(kind="wandb", samples=4))
    folder = tmp_path / "monitor" / "wandb"
    assert wandb_files.shown_in(folder) == await expected("wandb", run, log)
    files = [json.loads(path.read_text()) for path in folder.rglob("*.table.json")]
    assert len(files) == 12
    assert all(file["columns"] == COLUMNS and len(file["data"]) == 4 for file in files)
    assert any(ROW_1 in file["data"] for file in files)


async def test_mlflow_loads_tables(run: SyntheticRun, uri: str) -> None:
    log = await tracked(run, TrackerSpec(kind="mlflow", args={"uri": uri}, samples=4))
    assert mlflow_runs.shown_at(uri, str(run.id)) == await expected("mlflow", run, log)
    import mlflow

    explorer = mlflow_runs.runs_of(uri, str(run.id))["explorer"]
    mlflow.set_tracking_uri(uri)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_EXPERIMENT_ID", explorer.info.experiment_id)
        table = mlflow.load_table(f"{HELD}/{6:08d}.json", run_ids=[explorer.info.run_id])
    assert list(table.columns) == COLUMNS
    assert table.values.tolist()[1] == [*ROW_1[:-1], 2], "pandas makes a number of a text that is one"


async def test_swanlab_has_texts(run: SyntheticRun, tmp_path: Path) -> None:
    log = await tracked(run, TrackerSpec(kind="swanlab", args={"mode": "offline"}, samples=4))
    folder = tmp_path / "monitor" / "swanlab"
    assert swanlab_files.shown_in(folder) == await expected("swanlab", run, log)
    texts = [path.read_text() for path in folder.glob("run-*/media/text/*.txt")]
    assert len(texts) == 12
    assert any(
        "row: 2\nprompt: 2+2=\nanswer: 4\nreward: 1\ntokens: 7\nfinish: stop\ntruth: 4" in text for text in texts
    )


async def test_trackio_has_tables(run: SyntheticRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [module for module in sys.modules if module.partition(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "runs"))
    log = await tracked(run, TrackerSpec(kind="trackio", samples=4))
    assert trackio_runs.shown_in("p", "small", str(run.id)) == await expected("trackio", run, log)
    from trackio.sqlite_storage import SQLiteStorage
    from trackio.table import Table

    rows: list[Any] = SQLiteStorage.get_logs("p", "small_explorer", run_id=f"{run.id}-explorer")
    tables = [row[HELD] for row in rows if HELD in row]
    assert len(tables) == 12
    assert all(table["_type"] == Table.TYPE for table in tables)
    assert dict(zip(COLUMNS, ROW_1, strict=True)) in [row for table in tables for row in table["_value"]]
