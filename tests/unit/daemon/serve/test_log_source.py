"""The embedded log's socket: closed to other users while the log is served, and gone with its folder afterwards."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from rftd.daemon.serve.data_folder import DataFolder
from rftd.daemon.serve.log_source import owned_log
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds

pytestmark = pytest.mark.anyio


async def test_a_socket_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = DataFolder(tmp_path / "data")
    clock = SystemClock()
    folder.prepare()
    with TemporaryDirectory() as short:  # a socket's path is limited
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        for _ in range(2):
            async with owned_log(folder, None, clock=clock, ids=SystemIds(clock)):
                assert folder.socket.is_socket()
                assert folder.socket.parent.stat().st_mode & 0o777 == 0o700
            assert os.listdir(short) == []
