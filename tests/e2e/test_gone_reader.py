"""A daemon whose terminal is gone while it starts: it serves, and drains when it is told to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from synthetic.until import poll


@pytest.mark.e2e
def test_a_reader_that_goes_away_ends_no_daemon(tmp_path: Path) -> None:
    data = tmp_path / "data"
    daemon = subprocess.Popen(
        [sys.executable, "-P", "-m", "rftd.daemon", "--data", str(data), "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert daemon.stdout is not None and daemon.stderr is not None
        daemon.stdout.close()
        daemon.stderr.close()
        log = data / "daemon.log"
        poll(lambda: (log.exists() and "daemon.ready" in log.read_text()) or daemon.poll() is not None)
        assert daemon.poll() is None, log.read_text()
    finally:
        daemon.terminate()
        status = daemon.wait(30)
    assert status == 0
    assert "daemon.failed" not in log.read_text()
