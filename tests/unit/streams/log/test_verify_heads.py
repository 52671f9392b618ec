"""`rftd verify` holds the log against what its own fences and checkpoints remember of it (rule 10)."""

from __future__ import annotations

from uuid import UUID

import pytest

from rftd.ops.clock import ManualClock
from rftd.ops.ids import SeededIds
from rftd.streams.events.experiment import ExperimentPaused, Fence
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Draft
from rftd.streams.log.role import as_refs
from rftd.streams.memory import MemoryLog
from rftd.streams.verify.checker import verify

pytestmark = pytest.mark.anyio

EXPERIMENT = UUID(int=77)


def drafts(reasons: list[str]) -> tuple[Writer, list[Draft]]:
    clock = ManualClock()
    writer = Writer(source="test", clock=clock, ids=SeededIds(clock, 3))
    return writer, [writer.draft(ExperimentPaused(reason=reason), experiment=EXPERIMENT) for reason in reasons]


async def remembered_by_a_fence(reasons: list[str], kept: list[int], other: list[str]) -> list[str]:
    """Findings on a log that holds records `kept` of the one whose heads its fence remembers, `other` before it."""
    writer, written = drafts(reasons)
    whole = MemoryLog()
    await whole.append(written)
    fence = Fence(role="trainer", epoch=1, previous=0, owner=UUID(int=1), heads=as_refs(await whole.heads()))
    edited = MemoryLog()
    await edited.append([*drafts(other)[1], *(written[number] for number in kept)][: len(reasons)])
    await edited.append([writer.draft(fence, experiment=EXPERIMENT)])
    return [finding.what for finding in (await verify(edited)).findings if finding.rule == "heads-remembered"]


async def test_a_log_that_is_whole_has_what_is_remembered() -> None:
    assert await remembered_by_a_fence(["a", "b", "c"], [0, 1, 2], []) == []


async def test_a_record_that_was_edited_with_all_its_chains_is_found() -> None:
    found = await remembered_by_a_fence(["a", "b", "c"], [1, 2], ["x"])
    assert len(found) == 1, found
    assert "@2 is not the record that was acknowledged; fence at " in found[0], found


async def test_a_record_that_was_taken_out_is_found() -> None:
    found = await remembered_by_a_fence(["a", "b", "c"], [1], [])
    assert len(found) == 1, found
    assert "@2 was acknowledged and is gone: the log ends before 2; fence at " in found[0], found
