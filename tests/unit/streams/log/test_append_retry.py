"""A log without space: the same drafts are tried again after a pause, and nothing is left out or written twice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rftd.ops import limits
from rftd.ops.clock import ManualClock
from rftd.ops.errors import LogFullError, LogLossError, UnreachableError
from rftd.streams.log.append_retry import RETRY_FULL_S, append_when_space, parts
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.topics import Partition
from rftd.streams.memory import MemoryLog

SPINE = Partition("rftd.experiments", 0)


def drafts(count: int, *, size_bytes: int = 1) -> list[Draft]:
    return [Draft(SPINE, UUID(int=number + 1), b"", bytes(size_bytes)) for number in range(count)]


class FullAtFirst(MemoryLog):
    """A log whose first appends find no space; the one before the first success takes a part of the drafts."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.left = refusals
        self.tried: list[list[UUID]] = []

    async def append(self, drafts: Sequence[Draft]) -> list[Position]:
        self.tried.append([draft.id for draft in drafts])
        if self.left:
            self.left -= 1
            if not self.left:
                await super().append(drafts[:1])
            raise LogFullError("no space", fix="free some")
        return await super().append(drafts)


@pytest.mark.anyio
async def test_refused_drafts_are_retried_after_a_pause_and_every_refusal_is_reported() -> None:
    log = FullAtFirst(3)
    clock = ManualClock()
    began_s = clock.monotonic_s()
    heard: list[LogFullError] = []
    positions = await append_when_space(log, drafts(4), clock=clock, on_full=heard.append)
    assert positions == [Position(SPINE, offset) for offset in range(4)]
    assert log.tried == [[draft.id for draft in drafts(4)]] * 4
    assert [error.what for error in heard] == ["no space"] * 3
    assert clock.monotonic_s() - began_s == pytest.approx(3 * RETRY_FULL_S)
    assert len(await log.read(SPINE, 0)) == 4, "what had landed of them is not written twice"


@pytest.mark.anyio
@pytest.mark.parametrize("error", [UnreachableError("away"), LogLossError("gone"), OSError("other")])
async def test_every_other_error_is_raised_at_once(error: Exception) -> None:
    class Failing(MemoryLog):
        async def append(self, drafts: Sequence[Draft]) -> list[Position]:
            raise error

    clock = ManualClock()
    began_s = clock.monotonic_s()
    with pytest.raises(type(error)):
        await append_when_space(Failing(), drafts(1), clock=clock)
    assert clock.monotonic_s() == began_s


@pytest.mark.anyio
async def test_nothing_to_append_asks_nobody() -> None:
    log = FullAtFirst(1)
    assert await append_when_space(log, [], clock=ManualClock()) == []
    assert log.tried == []


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.sampled_from([1, 1000, limits.APPEND_SIZE_BYTES // 2, limits.APPEND_SIZE_BYTES]), max_size=12))
def test_parts_are_the_drafts_in_order_each_within_the_bound_and_none_cut_sooner(sizes: list[int]) -> None:
    blob = bytes(limits.APPEND_SIZE_BYTES)
    made = [Draft(SPINE, UUID(int=number + 1), b"", blob[:size]) for number, size in enumerate(sizes)]
    cut = [list(part) for part in parts(made)]
    assert [draft for part in cut for draft in part] == made
    assert all(cut)
    for part in cut:
        total = sum(draft.size_bytes for draft in part)
        assert total <= limits.APPEND_SIZE_BYTES or len(part) == 1
    for part, following in pairwise(cut):
        assert sum(draft.size_bytes for draft in part) + following[0].size_bytes > limits.APPEND_SIZE_BYTES


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_part_has_at_most_as_many_records_as_one_append_takes(more: int) -> None:
    cut = [len(part) for part in parts(drafts(limits.APPEND_RECORDS + more))]
    assert cut == ([limits.APPEND_RECORDS, 1] if more > 0 else [limits.APPEND_RECORDS + more])
