"""A daemon that dies at any point of archiving, restoring or removing leaves nothing half done."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene
from synthetic.until import PATIENCE_S

from rftd.ops.faults import POINTS

GARBAGE = ("garbage.before_removal", "garbage.after_rename")
"""Met first when the run ends: its published weights go then."""
STEPS = (
    ("archive", (), "archived", ("archive.after_file", "archive.after_append", *GARBAGE)),
    ("restore", (), "here", ("restore.after_files",)),
    ("rm", ("--yes",), "removed", ("removal.after_append",)),
)


@pytest.mark.e2e
@pytest.mark.slow
def test_a_death_at_each_point_of_keeping_is_survived(tmp_path: Path) -> None:
    once, hits = tmp_path / "once", tmp_path / "hits"
    once.mkdir()
    points = [point for *_, each in STEPS for point in each]
    assert {
        point for point in POINTS if point.partition(".")[0] in ("archive", "restore", "removal", "garbage")
    } == set(points)
    armed = ",".join(f"{point}=kill@1!{once / point}" for point in points)
    scene = Scene(tmp_path, environ={"RFTD_FAULTS": armed, "RFTD_FAULTS_HITS": str(hits)})
    with scene.host:
        name = scene.submit(EXPERIMENT, *SHORT)
        page = scene.until_ended(name)
        job = Path(page.experiment.job_dir)
        deadline_s = time.monotonic() + PATIENCE_S
        left = ("snapshots/*.fold", "weights/*", "weights/.*")
        while any(list(job.glob(each)) for each in left):  # it died when it tidied up; the next one goes on with that
            page = scene.page(name)  # whoever is gone is started again
            assert time.monotonic() < deadline_s, page
            time.sleep(0.1)
        assert all((once / point).exists() for point in GARBAGE)
        for verb, options, kept, deaths in STEPS:
            for _ in range(len(deaths) + 2):
                scene.page(name)  # whoever is gone is started again
                said = scene.rftd(verb, name, *options)
                if said.status == 0:
                    break
                assert said.status == 4, said
            shown = scene.page(name)
            assert shown is not None, (said, shown)
            assert shown.experiment.summary.kept == kept, (said, shown)
            checkpoints = [path for path in job.glob("global_step_*")] if job.exists() else []
            assert bool(checkpoints) == (kept == "here"), (verb, checkpoints)
        assert not job.exists()
        assert {path.name for path in once.iterdir()} == set(points)
        report = scene.verified()
        assert report.clean, report.findings
