"""An older copy of the data folder is put back: nothing is continued in silence, and whoever decides is on record."""

from __future__ import annotations

import json
import shutil

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene

from rftd.daemon.http.client.host import DaemonHost
from rftd.ops.errors import LogLossError

LONG = ("stages=[]", "buffer.total_steps=30", "explorer.eval_interval=1000", "trainer.save_interval=10")


def older_copy_put_back(scene: Scene, name: str) -> None:
    """A run whose log, state and losses are those of an earlier moment; its own folder is as it was left."""
    scene.until_step(name, 4)
    scene.host.stop()
    copy = scene.folder / "copy"
    shutil.copytree(scene.data.root, copy)
    scene.host.tend()
    scene.until_step(name, 12)
    scene.host.stop()
    scene.data.root.rename(scene.data.root.with_name("newer"))
    copy.rename(scene.data.root)


@pytest.mark.e2e
def test_an_older_copy_of_the_data_folder_is_not_continued_in_silence(embedded_scene: Scene) -> None:
    scene = embedded_scene
    name = scene.submit(EXPERIMENT, *LONG)
    older_copy_put_back(scene, name)
    found = scene.rftd("verify")
    assert found.status == 1, found
    assert "was acknowledged and is gone: the log ends before" in found.out, found
    records = json.loads(scene.rftd("--json", "verify").out)["records"]

    scene.host.tend()
    page = scene.page(name)
    assert page is not None
    assert page.waiting is not None
    assert LogLossError.code in page.waiting
    assert "is gone: the log ends before" in page.waiting
    why = scene.rftd("why", name)
    assert "log_loss" in why.out, why
    assert f"--accept-loss {name}" in why.out, why
    refused = scene.rftd("cancel", name)
    assert refused.status != 0, refused
    assert LogLossError.code in refused.err, refused
    other = scene.submit(EXPERIMENT, *SHORT, "name=other")
    assert scene.until_ended(other).experiment.summary.state == "completed"
    still = scene.page(name)
    assert still is not None
    assert still.experiment.summary.step < 12
    assert still.waiting == page.waiting
    assert not [each for each in still.workers if each.state == "live"]
    scene.host.stop()
    found = scene.rftd("verify")
    assert found.status == 1, found
    assert "broken: heads-remembered" in found.out, found
    assert json.loads(scene.rftd("--json", "verify").out)["records"] > records

    with DaemonHost(scene.data.root, scene.folder / "daemon.log", ("--accept-loss", name)) as host:
        scene.host = host
        assert scene.until_ended(name).experiment.summary.state == "completed"
    found = scene.rftd("verify")
    assert found.status == 0, found
    assert f"lost, accepted for {still.experiment.summary.id} by " in found.out, found
    found = scene.rftd("verify", "--files")
    assert found.status == 0, found
