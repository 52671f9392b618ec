"""A log that goes away while a daemon starts is waited for, as one that was not there yet; a wrong name is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rftd.daemon import service
from rftd.daemon.log_source import OwnedLog
from rftd.daemon.output.failure import leaves
from rftd.daemon.service import ServiceOptions, running
from rftd.ops.clock import SystemClock
from rftd.ops.errors import NotFoundError, UnreachableError
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.streams.backends.backend import log_url
from rftd.streams.backends.memory import MemoryLog
from rftd.streams.chain import Heads

pytestmark = pytest.mark.anyio


class LateLog(MemoryLog):
    """Its brokers do not answer the first times that somebody asks where it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 2

    async def heads(self) -> Heads:
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

    monkeypatch.setattr(service, "owned_log", owned)
    return log


def options(folder: Path, *, accept_loss: tuple[str, ...] = ()) -> ServiceOptions:
    return ServiceOptions(data=folder, port=0, log_at=log_url("kafka://127.0.0.1:1"), accept_loss=accept_loss)


async def test_the_log_is_waited_for(tmp_path: Path, late: LateLog) -> None:
    async with running(options(tmp_path), clock=SystemClock(), ids=SystemIds(SystemClock()), logger=logger()) as daemon:
        assert daemon.url
        assert not late.refusals


async def test_a_wrong_name_is_not_waited_for(tmp_path: Path, late: LateLog) -> None:
    wrong = options(tmp_path, accept_loss=("nobody",))
    with pytest.raises(ExceptionGroup) as ended:
        async with running(wrong, clock=SystemClock(), ids=SystemIds(SystemClock()), logger=logger()):
            pass
    [error] = leaves(ended.value)
    assert isinstance(error, NotFoundError)
    assert "nobody" in error.what
