"""Workflows on threads of their own."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rftd.ops.errors import RolloutError
from rftd.workers.workflows.threads import EngineFromThreads, on_own_thread


@pytest.mark.anyio
async def test_work_that_blocks_holds_up_no_other() -> None:
    """Each waits for the other without an await: on one loop neither would get anywhere."""
    both = threading.Barrier(2)

    async def work(name: str) -> str:
        both.wait(timeout=240)
        return name

    assert await asyncio.gather(on_own_thread(lambda: work("a")), on_own_thread(lambda: work("b"))) == ["a", "b"]


@pytest.mark.anyio
async def test_the_engine_is_asked_on_the_loop_that_it_lives_on() -> None:
    home = threading.get_ident()
    asked: list[int] = []

    async def generate(request: object) -> object:
        asked.append(threading.get_ident())
        await asyncio.sleep(0)
        return request

    engine = EngineFromThreads(cast(Any, SimpleNamespace(generate=generate, version=(3, 0))))

    async def work() -> tuple[object, int]:
        return await engine.generate(cast(Any, "question")), threading.get_ident()

    answer, thread = await on_own_thread(work)
    assert answer == "question"
    assert asked == [home]
    assert thread != home
    assert engine.version == (3, 0)


@pytest.mark.anyio
async def test_an_error_comes_out_as_it_is() -> None:
    async def work() -> None:
        raise RolloutError("no")

    with pytest.raises(RolloutError, match="no"):
        await on_own_thread(work)


@pytest.mark.anyio
async def test_cancelling_reaches_the_work_and_what_it_asked() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def generate(request: object) -> object:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    engine = EngineFromThreads(cast(Any, SimpleNamespace(generate=generate)))
    task = asyncio.ensure_future(on_own_thread(lambda: engine.generate(cast(Any, None))))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(30):
        await ended.wait()
