"""A log that goes away while a daemon starts is waited for, as one that was not there yet; a wrong name is not."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.cli.output.failure import leaves
from rftd.daemon.cli.service_options import ServiceOptions
from rftd.daemon.cli.settings import Settings
from rftd.daemon.http.client.address import OtherDaemonError
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.views.version import version
from rftd.daemon.run.supervisor.loss_check import find_losses
from rftd.daemon.serve import service
from rftd.daemon.serve.data_folder import DataFolder, Endpoint
from rftd.daemon.serve.folder_log import keep_for, of_another_log
from rftd.daemon.serve.log_source import OwnedLog
from rftd.daemon.serve.service import running
from rftd.ops.clock import SystemClock
from rftd.ops.errors import ConflictError, NotFoundError, UnreachableError
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.ops.releases import release_of
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.streams.log.backend import log_url
from rftd.streams.log.chain import Heads, Mark
from rftd.streams.log.topics import Partition
from rftd.streams.memory import MemoryLog
from rftd.streams.sqlite.heads_file import FILE_NAME, HeadsFile
from rftd.streams.sqlite.lock_file import LockFile

pytestmark = pytest.mark.anyio


class LateLog(MemoryLog):
    """Its brokers do not answer the first times that somebody asks where it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 2
        self.asked = asyncio.Event()

    async def heads(self) -> Heads:
        self.asked.set()
        if self.refusals:
            self.refusals -= 1
            raise UnreachableError("no broker answers")
        return await super().heads()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateLog:
    log = LateLog()

    @asynccontextmanager
    async def owned(*_: object, **__: object) -> AsyncIterator[OwnedLog]:
        yield OwnedLog(log=log, worker_url="unix:nowhere")

    async def nobody_can_tell(_: object) -> None:
        return None

    monkeypatch.setattr(service, "owned_log", owned)
    monkeypatch.setattr(service, "identity_at", nobody_can_tell)
    return log


def options(folder: Path, *, accept_loss: tuple[str, ...] = ()) -> ServiceOptions:
    return ServiceOptions(data=folder, port=0, log_at=log_url("kafka://127.0.0.1:1"), accept_loss=accept_loss)


async def until_ready(wanted: ServiceOptions, stop: asyncio.Event | None = None) -> str:
    """The address of a daemon that was ready once, and ended after that, or once it was told to `stop`."""
    clock = SystemClock()
    async with running(wanted, clock=clock, ids=SystemIds(clock), logger=logger()) as daemon:
        if stop is not None:
            await stop.wait()
        return daemon.url


def asked(settings: Settings) -> str:
    """The daemon's release, as a verb asks for it."""
    with Client(settings, {}) as client:
        return client.ask(version).value.version


async def test_the_log_is_waited_for(tmp_path: Path, late: LateLog) -> None:
    async with running(options(tmp_path), clock=SystemClock(), ids=SystemIds(SystemClock()), logger=logger()) as daemon:
        assert daemon.url
        assert not late.refusals


async def test_a_log_elsewhere_is_not_held_against_the_embedded_one_that_the_folder_had(
    tmp_path: Path, late: LateLog
) -> None:
    (tmp_path / "log").mkdir()
    file = HeadsFile(tmp_path / "log" / FILE_NAME)
    file.write({Partition("rftd.tasks", 0): Mark(7, bytes(range(16)))})
    file.close()
    assert await until_ready(options(tmp_path))
    assert not (tmp_path / "losses.json").exists()
    folder = DataFolder(tmp_path)
    elsewhere = await find_losses(late, folder, None, embedded=False, unheard=lambda _: None)
    embedded = await find_losses(late, folder, None, embedded=True, unheard=lambda _: None)
    assert [loss.head.by for loss in elsewhere + embedded] == [str(folder.log / FILE_NAME)]


async def test_tables_of_the_embedded_log_are_no_witness_against_one_elsewhere(tmp_path: Path, late: LateLog) -> None:
    late.refusals = 0
    folder, log = DataFolder(tmp_path), MemoryLog()
    folder.log.mkdir()
    await log.append(SyntheticRun(Recorder(), faults=False).write().recorder.drafts)
    engine = open_database(folder.state_url)
    projector = Projector(log, engine, clock=SystemClock())
    await projector.catch_up()
    await projector.close()
    await engine.dispose()
    assert not await find_losses(late, folder, None, embedded=False, unheard=lambda _: None)
    assert await find_losses(late, folder, None, embedded=True, unheard=lambda _: None)
    embedded = LockFile(folder.log)  # its daemon is still there
    with pytest.raises(ConflictError):
        await until_ready(options(tmp_path))
    embedded.release()
    assert await until_ready(options(tmp_path))
    assert not folder.losses.exists()
    assert (tmp_path / "aside" / "embedded" / "state.db").exists()
    # Its own tables are a witness from now on, and none against the embedded log.
    assert not of_another_log(folder, embedded=False)
    assert of_another_log(folder, embedded=True)
    keep_for(folder, embedded=True)
    assert (tmp_path / "aside" / "elsewhere" / "state.db").exists()


async def test_a_daemon_serves_who_names_its_folder_and_nobody_who_names_another(tmp_path: Path, late: LateLog) -> None:
    """The file of another folder is left from before its daemon ended and this one got the port."""
    mine = tmp_path / "mine"
    another = DataFolder(tmp_path / "another")
    another.prepare()
    async with running(options(mine), clock=SystemClock(), ids=SystemIds(SystemClock()), logger=logger()) as daemon:
        another.announce(Endpoint(url=daemon.url, pid=os.getpid(), folder=another.id))
        assert await asyncio.to_thread(asked, Settings(data=str(mine)))
        with pytest.raises(OtherDaemonError, match=r"no daemon serves from .*another"):
            await asyncio.to_thread(asked, Settings(data=str(another.root)))


async def test_a_daemon_that_waits_says_where_it_is_and_what_for(tmp_path: Path, late: LateLog) -> None:
    late.refusals = 1_000_000
    async with asyncio.TaskGroup() as tasks:
        daemon = tasks.create_task(until_ready(options(tmp_path)))
        await late.asked.wait()
        # The address is written before the log is asked.
        settings = Settings(data=str(tmp_path), timeout_s=30.0)
        with pytest.raises(UnreachableError) as refused:
            await asyncio.to_thread(asked, settings)
        # Whichever part asks the log first.
        assert re.search("the daemon is not ready, its (log|state) is not there: no broker answers", refused.value.what)
        late.refusals = 0
        assert await daemon == Client(settings, {}).url


async def test_the_address_of_an_embedded_log_is_written_once_the_folder_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its tables are brought up to date, a request waits for its answer."""
    opening = asyncio.Event()
    go_on = asyncio.Event()
    stop = asyncio.Event()
    inner = Projector.open

    async def slow(self: Projector) -> None:
        opening.set()
        await go_on.wait()
        await inner(self)

    monkeypatch.setattr(Projector, "open", slow)
    alone = ServiceOptions(data=tmp_path, port=0)
    async with asyncio.TaskGroup() as tasks:
        daemon = tasks.create_task(until_ready(alone, stop))
        await opening.wait()
        written = (tmp_path / "endpoint.json").read_bytes()
        second = ServiceOptions(data=tmp_path, port=0)
        with pytest.raises(ConflictError):
            await until_ready(second)
        assert (tmp_path / "endpoint.json").read_bytes() == written, "the address is the first one's"
        with Client(Settings(data=str(tmp_path)), {}) as client:
            readiness = await asyncio.to_thread(client.readiness)
        assert not readiness.verdict.ok
        assert "it is starting" in readiness.verdict.checks[0].reason
        answer = tasks.create_task(asyncio.to_thread(asked, Settings(data=str(tmp_path))))
        go_on.set()
        assert await answer == release_of("rftd")
        stop.set()
        await daemon


async def test_a_wrong_name_is_not_waited_for(tmp_path: Path, late: LateLog) -> None:
    wrong = options(tmp_path, accept_loss=("nobody",))
    with pytest.raises(ExceptionGroup) as ended:
        async with running(wrong, clock=SystemClock(), ids=SystemIds(SystemClock()), logger=logger()):
            pass
    [error] = leaves(ended.value)
    assert isinstance(error, NotFoundError)
    assert "nobody" in error.what
