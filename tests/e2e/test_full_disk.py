"""A full disk stops progress with a reason, loses nothing, and the run goes on by itself when there is space."""

from __future__ import annotations

import resource
import time

import pytest
from synthetic.daemon.scene import Scene


@pytest.mark.e2e
def test_a_full_disk_is_waited_out(embedded_scene: Scene) -> None:
    name = embedded_scene.submit()
    embedded_scene.until_step(name, 6)
    unlimited = resource.prlimit(embedded_scene.host.pid, resource.RLIMIT_FSIZE)
    # To a process, a file that may not grow looks like a disk without space; Python ignores the signal.
    resource.prlimit(embedded_scene.host.pid, resource.RLIMIT_FSIZE, (64 * 1024, unlimited[1]))
    deadline_s = time.monotonic() + 30.0
    # The projector may meet the limit first, and SQLite calls it an I/O error: wait for the log.
    while "space" not in (ready := embedded_scene.get("/readyz?verbose")).text:
        assert time.monotonic() < deadline_s, f"the daemon never noticed: {ready.text}"
        time.sleep(0.05)
    assert ready.status_code == 503
    assert embedded_scene.get("/livez").status_code == 200
    shown = embedded_scene.rftd("get", name)
    assert shown.status == 0, shown
    assert "waiting       RFTD-LOG-004: no space for an append" in shown.out, shown
    examined = embedded_scene.rftd("doctor")
    assert examined.status == 1, examined
    assert "RFTD-LOG-004" in examined.out, examined
    refused = embedded_scene.rftd("pause", name)
    assert refused.status == 70, refused
    assert "error[RFTD-LOG-004]" in refused.err, refused
    assert "free space" in refused.err, refused
    resource.prlimit(embedded_scene.host.pid, resource.RLIMIT_FSIZE, unlimited)
    page = embedded_scene.until_ended(name)
    assert page.experiment.summary.state == "completed", page.experiment.summary
    assert page.experiment.summary.step == 65
    report = embedded_scene.verified()
    assert report.clean, report.findings
