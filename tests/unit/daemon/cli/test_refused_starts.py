"""A daemon that cannot have its folder or its port says so before it imports what a daemon needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rftd.daemon.serve.claim import Claim
from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.bound_socket import bind, listen
from rftd.ops.errors import ConflictError, UsageError
from rftd.streams.sqlite.lock_file import LockFile

SLOW = ("fastapi", "httpx", "pydantic", "rftd.daemon.serve.service", "sqlalchemy", "uvicorn")
"""What costs a daemon's start most of its processor time."""
START = f"""
import json, sys
from rftd.daemon.cli.cli import main
status = main(sys.argv[1:])
print(json.dumps([status, sorted(set({SLOW!r}) & set(sys.modules))]))
"""


def started(data: Path, *options: str, environ: Mapping[str, str] = os.environ) -> tuple[int, list[str], str]:
    """The exit status of `rftd serve`, what it imported of the slow modules, and its standard error."""
    command = [sys.executable, "-P", "-c", START, "--data", str(data), "serve", *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    status, imported = json.loads(done.stdout)
    return status, imported, done.stderr


@pytest.mark.parametrize(("options", "locked"), [((), "data/log"), (("--kafka", "127.0.0.1:1"), "data")])
def test_a_folder_that_a_daemon_has_is_refused_before_anything_slow(
    options: tuple[str, ...], locked: str, tmp_path: Path
) -> None:
    (tmp_path / locked).mkdir(parents=True)
    first = LockFile(tmp_path / locked)
    status, imported, err = started(tmp_path / "data", "--port", "0", *options)
    first.release()
    assert status == ConflictError.exit_status
    assert "is open in process" in err
    assert not imported
    line = json.loads((tmp_path / "data" / "daemon.log").read_text())
    assert line["event"] == "daemon.failed"
    assert line["code"] == ConflictError.code


def test_a_temporary_folder_whose_path_is_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    environ = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"} | {"TMPDIR": str(long)}
    status, imported, err = started(tmp_path / "data", "--port", "0", environ=environ)
    assert status == UsageError.exit_status
    assert str(long) in err and "or else TMPDIR, in which it lies, to a shorter folder" in err
    assert not imported


def test_a_port_that_somebody_has_is_refused_before_anything_slow(tmp_path: Path) -> None:
    with bind("127.0.0.1", 0) as first:
        listen(first, 1)
        status, imported, err = started(tmp_path / "data", "--port", str(first.getsockname()[1]))
    assert status == ConflictError.exit_status
    assert "--port: cannot listen on" in err
    assert not imported
    LockFile(tmp_path / "data" / "log").release()


def test_of_two_claims_of_one_port_the_second_to_listen_is_refused(tmp_path: Path) -> None:
    """Two sockets on which nobody listens yet may be bound to one port."""
    first = Claim(DataFolder(tmp_path / "first"), "127.0.0.1", 0, embedded=True)
    port = first.bound.getsockname()[1]
    second = Claim(DataFolder(tmp_path / "second"), "127.0.0.1", port, embedded=True)
    listen(first.bound, 1)
    with pytest.raises(ConflictError, match=f"cannot listen on 127.0.0.1:{port}"):
        listen(second.bound, 1)
    first.release()
    second.release()


def test_a_claim_that_is_released_leaves_folder_and_port_to_the_next(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    first = Claim(folder, "127.0.0.1", 0, embedded=True)
    with pytest.raises(ConflictError, match="is open in process"):
        Claim(folder, "127.0.0.1", 0, embedded=True)
    port = first.bound.getsockname()[1]
    first.release()
    first.release()
    Claim(folder, "127.0.0.1", port, embedded=True).release()
