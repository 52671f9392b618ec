"""A full disk stops progress with a reason, loses nothing, and the run goes on by itself when there is space."""

from __future__ import annotations

import resource
import time

import httpx
import pytest
from scene import Scene


@pytest.mark.e2e
def test_a_full_disk_is_waited_out(scene: Scene) -> None:
    name = scene.submit()
    scene.until_step(name, 6)
    unlimited = resource.prlimit(scene.host.pid, resource.RLIMIT_FSIZE)
    # To a process, a file that may not grow looks like a disk without space; Python ignores the signal.
    resource.prlimit(scene.host.pid, resource.RLIMIT_FSIZE, (64 * 1024, unlimited[1]))
    deadline_s = time.monotonic() + 30.0
    while (ready := httpx.get(f"{scene.host.url}/readyz?verbose", trust_env=False)).status_code == 200:
        assert time.monotonic() < deadline_s, "the daemon never noticed"
        time.sleep(0.05)
    assert ready.status_code == 503
    assert "space" in ready.text or "full" in ready.text, ready.text
    assert httpx.get(f"{scene.host.url}/livez", trust_env=False).status_code == 200
    shown = scene.rftd("get", name)
    assert shown.status == 0 and "waiting       RFTD-LOG-004: no space for an append" in shown.out, shown
    examined = scene.rftd("doctor")
    assert examined.status == 1 and "RFTD-LOG-004" in examined.out, examined
    refused = scene.rftd("pause", name)
    assert refused.status == 70 and "error[RFTD-LOG-004]" in refused.err and "free space" in refused.err, refused
    resource.prlimit(scene.host.pid, resource.RLIMIT_FSIZE, unlimited)
    page = scene.until_ended(name)
    assert page.experiment.summary.state == "completed", page.experiment.summary
    assert page.experiment.summary.step == 65
    report = scene.verified()
    assert report.clean, report.findings
