"""`serve_recording`: the recorded demo run in a daemon without workers, until the caller is done."""

from __future__ import annotations

import lzma
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rftd.daemon.cli.living_wait import LivingWait, say_beside
from rftd.daemon.demo.sums import write_sums
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.client.host import DaemonHost
from rftd.daemon.http.views import experiments
from rftd.daemon.http.views.moment import ENDED
from rftd.ops.errors import ConflictError, NotFoundError

RECORDING: Final = Path(__file__).with_name("recorded.rftd.xz")
"""An export of a short demo run, compressed, made by tests/golden/make_demo_recording.py."""
RECORDED_FOLDER: Final = "/tmp/rftd-recorded-demo"  # noqa: S108 (a name in the recording, mapped to a fresh folder)
"""Folder of the recorded run at its time, as in the paths of its file."""
_SEED: Final = 1
"""Seed of the recorded run: its rows are made again from it, for the truths beside the answers."""
_RESERVE: Final = "16MiB"
"""Disk space reserved by the recording's daemon."""
_POLL_S: Final = 0.1
"""Seconds between two looks at the tables."""
RECORDED: Final = "sums"
"""Name of the recorded run."""


@contextmanager
def serve_recording() -> Iterator[DaemonHost]:
    """Imports the recording into a temporary folder, and serves it while the block runs. Raises ConflictError."""
    with tempfile.TemporaryDirectory(prefix="rftd-demo-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        home = folder / "run"
        home.mkdir()
        write_sums(home / "tasks", seed=_SEED)
        exported = folder / "recorded.rftd"
        exported.write_bytes(lzma.decompress(RECORDING.read_bytes()))
        rftd = [sys.executable, "-P", "-m", "rftd.daemon", "--data", str(folder / "data")]
        move = f"{RECORDED_FOLDER}={home}"
        imported = subprocess.run(
            [*rftd, "import", str(exported), "--no-verify", "--map", move], capture_output=True, text=True, check=False
        )
        if imported.returncode:
            raise ConflictError("the recorded run cannot be read", where=str(RECORDING), fix=imported.stderr.strip())
        environ = {"RFTD_DISK_RESERVE": _RESERVE}
        daemon = DaemonHost(folder / "data", folder / "daemon.log", ("--workers", "external"), environ, tied=True)
        with daemon as host:
            _wait_for_tables(host)
            yield host


def _wait_for_tables(host: DaemonHost) -> None:
    """Waits until the tables hold the end of the recorded run."""
    wait = LivingWait("the recorded run is not in the tables yet", say=say_beside)
    while not _is_shown(host):
        host.check()
        wait.goes_on(host.pid, "it reads the recording")
        time.sleep(_POLL_S)


def _is_shown(host: DaemonHost) -> bool:
    """True if the tables show the end of the recorded run."""
    with Client(host.settings, {}) as client:
        try:
            return client.ask(experiments.summary, name=RECORDED).value.state in ENDED
        except NotFoundError:
            return False
