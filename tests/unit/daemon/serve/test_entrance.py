"""The daemon's HTTP front: host names accepted after a renewal of its certificate."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from synthetic.servers.certificates import Authority

from rftd.daemon.serve.data_folder import DataFolder
from rftd.daemon.serve.entrance import Entrance, EntranceOptions
from rftd.ops.clock import ManualClock
from rftd.ops.logs import logger
from rftd.ops.tls import ServerTls

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")]


async def test_names_of_a_renewed_certificate_are_accepted_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.certificate("own", hosts="DNS:old.example")
    data = tmp_path / "data"
    data.mkdir()
    options = EntranceOptions(tls=ServerTls(*own), allow_hosts=("alias.example",))
    entrance = Entrance(DataFolder(data), options, clock=ManualClock(), logger=logger())
    assert entrance.keeper.hosts == {"alias.example", "old.example"}
    for new, current in zip(authority.certificate("new", hosts="DNS:new.example"), own, strict=True):
        os.replace(new, current)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(entrance.watch_certificate())
        while "new.example" not in entrance.keeper.hosts:  # noqa: ASYNC110 - a plain attribute of another task
            await asyncio.sleep(0)
        watch.cancel()
    assert entrance.keeper.hosts == {"alias.example", "new.example"}
