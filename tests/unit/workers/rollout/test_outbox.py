"""The outbox hands on in order and in batches, lets producers wait, and knows when everything is in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

import pytest
from synthetic.until import until

from rftd.ops.clock import SystemClock
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.topics import EXPERIENCES, Partition
from rftd.workers.rollout.outbox import BATCH_DRAFTS, CAPACITY_DRAFTS, Outbox

pytestmark = pytest.mark.anyio


class Log:
    """Takes appends while `open` is set."""

    def __init__(self) -> None:
        self.taken: list[list[int]] = []
        self.open = asyncio.Event()

    async def append(self, drafts: Sequence[Draft]) -> list[Position]:
        await self.open.wait()
        self.taken.append([draft.id.int for draft in drafts])
        return []


def drafts(first: int, count: int) -> list[Draft]:
    return [Draft(Partition(EXPERIENCES, 0), UUID(int=first + i), b"", b"") for i in range(count)]


async def test_they_are_appended_in_order_and_a_full_one_lets_producers_wait() -> None:
    log = Log()
    outbox = Outbox(cast(Any, log), SystemClock())
    total = CAPACITY_DRAFTS + BATCH_DRAFTS + 8
    put = 0

    async def produce() -> None:
        nonlocal put
        for first in range(0, total, 8):
            await outbox.put(drafts(first, 8))
            put = first + 8

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        appends = tasks.create_task(outbox.run())
        producer = tasks.create_task(produce())
        await until(lambda: put == CAPACITY_DRAFTS + BATCH_DRAFTS or producer.done())
        assert not producer.done()
        assert not await outbox.drained(0.0)
        log.open.set()
        await producer
        assert await outbox.drained(20.0)
        appends.cancel()
    assert [id for batch in log.taken for id in batch] == list(range(total))
    assert max(map(len, log.taken)) <= BATCH_DRAFTS


async def test_an_empty_one_is_drained() -> None:
    assert await Outbox(cast(Any, Log()), SystemClock()).drained(1.0)
