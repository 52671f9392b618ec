"""A copy of the data folder is served beside the original: it says so, and touches nothing that is not its own."""

from __future__ import annotations

import shutil

import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene

from rftd.daemon.http.client.host import DaemonHost
from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.errors import OtherLogError

LONG = ("stages=[]", "buffer.total_steps=16", "explorer.eval_interval=1000", "trainer.save_interval=4")


@pytest.mark.e2e
def test_a_copy_that_is_served_beside_the_original_touches_no_folder_of_it(embedded_scene: Scene) -> None:
    scene = embedded_scene
    name = scene.submit(EXPERIMENT, *LONG)
    scene.until_step(name, 4)
    scene.host.stop()
    copy = DataFolder(scene.folder / "copy")
    shutil.copytree(scene.data.root, copy.root)

    # Nothing in the experiment's folder is younger than the copy: no memory of the log tells the two apart.
    with DaemonHost(copy.root, scene.folder / "copy.log"):
        why = scene.rftd("--data", str(copy.root), "why", name)
        assert OtherLogError.code in why.out, why
        assert f"--take-over {name}" in why.out, why
        refused = scene.rftd("--data", str(copy.root), "cancel", name)
        assert refused.status != 0, refused
        assert OtherLogError.code in refused.err, refused
        scene.host.tend()
        assert scene.until_ended(name).experiment.summary.state == "completed"
    scene.host.stop()
    verified = scene.rftd("verify", "--files")
    assert verified.status == 0, verified

    # Of what is over by now a copy removes nothing.
    later = DataFolder(scene.folder / "later")
    shutil.copytree(scene.data.root, later.root)
    with DaemonHost(later.root, scene.folder / "later.log"):
        removed = scene.rftd("--data", str(later.root), "rm", name, "--yes")
        assert removed.status != 0, removed
        assert OtherLogError.code in removed.err, removed
    verified = scene.rftd("verify", "--files")
    assert verified.status == 0, verified
