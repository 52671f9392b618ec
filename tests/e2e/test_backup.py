"""A backup made while a run is trained at full speed is put back, and the run goes on in it to its end."""

from __future__ import annotations

import json
import shutil

import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene

from rftd.daemon.http.client.host import DaemonHost
from rftd.ops.errors import LogLossError

LONG = ("stages=[]", "buffer.total_steps=30", "explorer.eval_interval=1000", "trainer.save_interval=10")


@pytest.mark.e2e
def test_a_backup_of_a_busy_daemon_is_continued_and_keeps_every_promise(embedded_scene: Scene) -> None:
    scene = embedded_scene
    name = scene.submit(EXPERIMENT, *LONG)
    scene.until_step(name, 4)
    copy = scene.folder / "copy"
    backup = scene.rftd("--json", "backup", str(copy))
    assert backup.status == 0, backup
    manifest = json.loads(backup.out)
    assert [experiment["name"] for experiment in manifest["experiments"]] == [name]
    assert not (copy / "owner.token").exists()
    assert not (copy / "backup.pending").exists()
    scene.until_step(name, 22)  # a checkpoint is younger than the backup

    # A backup is verified with its own files, whatever the original does meanwhile.
    verified = scene.rftd("--data", str(copy), "verify", "--files")
    assert verified.status == 0, verified
    assert f"verified with the files in {copy / 'experiments'}" in verified.err
    damaged = next((copy / "experiments").rglob("model.safetensors"))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1])
    verified = scene.rftd("--data", str(copy), "verify", "--files")
    assert verified.status == 1, verified
    assert str(damaged.parent) in verified.out
    damaged.write_bytes(whole)
    scene.host.stop()

    # What is younger than the backup is named, and nothing is mixed with it before somebody has decided.
    scene.data.root.rename(scene.data.root.with_name("original"))
    shutil.copytree(copy, scene.data.root)
    with DaemonHost(scene.data.root, scene.folder / "daemon.log") as host:
        scene.host = host
        page = scene.page(name)
        assert page is not None
        assert page.waiting is not None
        assert LogLossError.code in page.waiting
    shutil.rmtree(scene.data.root / "experiments")
    verified = scene.rftd("verify")
    assert verified.status == 1, verified
    broken = [line for line in verified.out.splitlines() if line.startswith("broken:")]
    assert all("heads-remembered" in line for line in broken), verified
    with DaemonHost(scene.data.root, scene.folder / "daemon.log", ("--accept-loss", name)) as host:
        scene.host = host
        assert scene.until_ended(name).experiment.summary.state == "completed"
    verified = scene.rftd("verify", "--files", "--index")
    assert verified.status == 0, verified
