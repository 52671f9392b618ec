"""Files that the release 0.1 wrote are opened and used as before: a data folder with its log and tables, an export.

`tests/golden/data_folder/rftd_0.1.tar.xz` was made by `rftd serve` of that release and is never made anew: a run that
completed, in `one`, and the export of one that was paused, `half.rftd`. Their experiments lay below `/tmp/rl`.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene

FILES = Path(__file__).parents[1] / "golden" / "data_folder" / "rftd_0.1.tar.xz"
RECORDS = 176
STEPS = 9


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The files, below a folder of their own."""
    with tarfile.open(FILES) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.mark.slow
def test_an_old_log_and_its_tables_are_read_without_a_daemon(old: Path) -> None:
    scene = Scene(old / "one")
    report = scene.verified()
    assert report.clean, report.findings
    assert report.records == RECORDS
    assert [(each.name, each.state, each.steps) for each in report.experiments] == [("done", "completed", STEPS)]
    indexed = scene.rftd("verify", "--index")
    assert indexed.status == 0, indexed.out + indexed.err
    rebuilt = scene.rftd("rebuild", "--verify", "--json")
    assert rebuilt.status == 0, rebuilt.out + rebuilt.err
    compared = json.loads(rebuilt.out)
    assert all(table["equal"] for table in compared["tables"].values())
    assert "experiments.signal_cause" in compared["lacking"]
    assert "experiments.state" not in compared["lacking"]


@pytest.mark.e2e
def test_a_daemon_goes_on_in_an_old_data_folder(old: Path) -> None:
    scene = Scene(old / "one")
    with scene.host:
        summary = scene.until_ended("done").experiment.summary
        assert (summary.state, summary.step) == ("completed", STEPS)
        more = scene.submit(EXPERIMENT, *SHORT, "name=more")
        assert scene.until_ended(more).experiment.summary.state == "completed"
    report = scene.verified()
    assert report.clean, report.findings
    assert [each.name for each in report.experiments] == ["done", "more"]


@pytest.mark.e2e
def test_an_old_export_is_imported_and_its_run_resumed(old: Path) -> None:
    scene = Scene(old)
    imported = scene.rftd("import", str(old / "half.rftd"), "--map", f"/tmp/rl/two={old}", "--json")
    assert imported.status == 0, imported.err
    answer = json.loads(imported.out)
    assert (answer["state"], answer["tables_equal"], answer["missing"]) == ("paused", True, [])
    with scene.host:
        scene.until_state("half", "paused")
        assert scene.rftd("resume", "half").status == 0
        summary = scene.until_ended("half").experiment.summary
        assert (summary.state, summary.step) == ("completed", 6)
    report = scene.verified()
    assert report.clean, report.findings
