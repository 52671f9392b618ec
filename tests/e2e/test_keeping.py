"""Archive, restore, rm and gc through the real daemon and command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene

from rftd.storage.files.checkpoints import LATEST_CHECKPOINT

pytestmark = pytest.mark.e2e


def held(job: Path) -> dict[str, bytes]:
    """The files of an experiment, but for its logs and snapshots."""
    files = (path for path in job.rglob("*") if path.is_file() and not {"log", "snapshots"} & set(path.parts))
    return {str(path.relative_to(job)): path.read_bytes() for path in files}


def listed(scene: Scene, *options: str) -> list[tuple[str, str]]:
    items = json.loads(scene.rftd("ls", "--json", *options).out)["items"]
    return [(item["name"], item["kept"]) for item in items]


def test_an_experiment_is_archived_restored_and_removed(embedded_scene: Scene) -> None:
    scene = embedded_scene
    name = scene.submit(EXPERIMENT, *SHORT)
    early = scene.rftd("archive", name)
    assert early.status == 5, early
    assert "only ended experiments can be archived" in early.err, early
    first = scene.until_ended(name).experiment
    job = Path(first.job_dir)
    done = scene.rftd("archive", name, "--json")
    assert done.status == 0, done
    archive = Path(json.loads(done.out)["path"])
    assert archive.parent == scene.data.archives
    assert archive.is_file()
    before = {path: data for path, data in held(job).items()}
    assert before == {}
    assert (job / "log").is_dir()
    page = scene.rftd("get", name)
    assert f"files         archived in {archive}" in page.out, page
    assert "(archived, " in page.out, page
    again = scene.rftd("archive", name)
    assert again.status == 0, again
    assert "already archived" in again.out, again
    refused = scene.rftd("export", name)
    assert refused.status == 5, refused
    assert str(archive) in refused.err, refused
    taken = scene.rftd("submit", str(scene.write()), *(word for each in SHORT for word in ("-s", each)))
    assert taken.status == 5, taken
    assert "are in an archive" in taken.err, taken
    for verb in ("events", "lineage"):
        assert scene.rftd(verb, name).status == 0
    moved = archive.with_name("moved.rftd")
    archive.rename(moved)
    lost = scene.rftd("restore", name)
    assert lost.status == 3, lost
    assert str(archive) in lost.err, lost
    assert scene.rftd("restore", name, "--from", str(moved)).status == 0
    assert any(path.startswith("global_step_6/") for path in held(job))
    assert (job / LATEST_CHECKPOINT).is_file()
    unasked = scene.rftd("rm", name)
    assert unasked.status == 2, unasked
    assert "--yes" in unasked.err, unasked
    assert scene.rftd("rm", name, "--yes", "--reason", "tidying up").status == 0
    assert not job.exists()
    assert listed(scene) == []
    assert listed(scene, "--all") == [(name, "removed")]
    assert "already removed" in scene.rftd("rm", name, "--yes").out
    assert scene.submit(EXPERIMENT, *SHORT) == name
    second = scene.until_ended(name, but=first.summary.id)
    assert second.experiment.job_dir == str(job)
    assert listed(scene) == [(name, "here")]
    assert len(listed(scene, "--all")) == 2
    files = held(job)
    gone = next(item for item in json.loads(scene.rftd("ls", "--all", "--json").out)["items"] if item["kept"] != "here")
    exported = scene.rftd("export", gone["id"], "--to", "gone.rftd")
    assert exported.status == 0, exported
    assert "only its events are exported" in exported.out + exported.err, exported
    elsewhere = scene.rftd("--data", "elsewhere", "import", "gone.rftd", "--json")
    assert elsewhere.status == 0, elsewhere
    assert json.loads(elsewhere.out)["job_dir"] != str(job), "which is another's now, and would be cleared"
    scene.host.stop()
    scene.host.tend()
    assert scene.page(name) is not None, "the removed one's folder is another's now"
    assert held(job) == files, "the removed one's folder is another's now"
    report = scene.verified()
    assert report.clean, report.findings


def test_a_spoilt_archive_restores_nothing(embedded_scene: Scene, tmp_path: Path) -> None:
    scene = embedded_scene
    name = scene.submit(EXPERIMENT, *SHORT)
    job = Path(scene.until_ended(name).experiment.job_dir)
    target = tmp_path / "kept.rftd"
    assert scene.rftd("archive", name, "--to", str(target)).status == 0
    data = bytearray(target.read_bytes())
    data[len(data) // 2] ^= 1
    target.write_bytes(data)
    said = scene.rftd("restore", name)
    assert said.status in (2, 70), said
    assert "error[RFTD-" in said.err, said
    assert held(job) == {}
    data[len(data) // 2] ^= 1
    target.write_bytes(data)
    assert scene.rftd("restore", name).status == 0
    assert held(job)


def test_gc_removes_what_no_event_names(embedded_scene: Scene) -> None:
    scene = embedded_scene
    name = scene.submit(EXPERIMENT, *SHORT)
    job = Path(scene.until_ended(name).experiment.job_dir)
    scene.host.stop()  # which sees to it itself when the run has ended
    kept = held(job)
    for path in ("global_step_99/actor/x", ".global_step_3.tmp/y", "weights/v77-g0/z", "mine.txt"):
        (job / path).parent.mkdir(parents=True, exist_ok=True)
        (job / path).write_text("12345")
    shown = scene.rftd("gc", "--dry-run", "--json")
    assert shown.status == 0, shown
    paths = {item["path"] for item in json.loads(shown.out)["items"]}
    assert paths == {str(job / part) for part in ("global_step_99", ".global_step_3.tmp", "weights/v77-g0")}
    assert all(Path(path).exists() for path in paths)
    done = scene.rftd("gc", name)
    assert done.status == 0, done
    assert "3 files and folders, 15 bytes removed" in done.out, done
    assert held(job) == {**kept, "mine.txt": b"12345"}


def test_gc_leaves_a_running_experiment_to_its_daemon(embedded_scene: Scene) -> None:
    scene = embedded_scene
    name = scene.submit(EXPERIMENT)
    page = scene.until_step(name, 1)
    stray = Path(page.experiment.job_dir) / "global_step_99"
    stray.mkdir()
    said = scene.rftd("gc", name)
    assert said.status == 0, said
    assert "its daemon sees to it" in said.err, said
    assert stray.exists(), said
    assert scene.rftd("rm", name, "--yes").status == 5
