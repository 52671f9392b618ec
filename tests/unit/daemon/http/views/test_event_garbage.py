"""`rftd events` on a log that holds records of a stranger, and from the end of a log."""

from __future__ import annotations

from uuid import UUID

import pytest
from synthetic.daemon.daemon_parts import DaemonParts
from synthetic.log.garbage import garbage

from rftd.daemon.http.views import event_pages
from rftd.daemon.http.views.event_pages import EventPager, decode_cursor, partitions_of
from rftd.ops.clock import ManualClock, time_ns_of
from rftd.ops.ids import SeededIds
from rftd.streams.events.experiment import ExperimentPaused, Fence
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer
from rftd.streams.log.topics import partition_of
from rftd.streams.memory import MemoryLog

EXPERIMENT = UUID(int=77)


@pytest.mark.anyio
async def test_what_claims_to_be_of_the_experiment_is_shown_as_left_out() -> None:
    clock, log = ManualClock(), MemoryLog()
    ids = SeededIds(clock, 1)
    await log.append(garbage(EXPERIMENT, ids, clock))
    await log.append([Writer(source="t", clock=clock, ids=ids).draft(ExperimentPaused(), experiment=EXPERIMENT)])
    page = await EventPager(log, EXPERIMENT).page({}, limit=10_000)
    assert not page.more
    good = [item for item in page.items if "left_out" not in item.payload]
    assert [item.type for item in good] == ["experiment.paused"]
    dead = {item.payload["reason"] for item in page.items if "left_out" in item.payload}
    assert "no event type 'order.placed'" in dead
    home = partition_of(topics.EXPERIMENTS, EXPERIMENT)
    assert any(
        item.position.startswith(f"{home}@") and "unreadable" in item.payload["reason"]
        for item in page.items
        if "left_out" in item.payload
    )


@pytest.mark.anyio
async def test_the_newest_events_are_the_end_of_all(parts: DaemonParts, monkeypatch: pytest.MonkeyPatch) -> None:
    pager = EventPager(parts.log, parts.run.id)
    every = (await pager.page({}, limit=10_000)).items
    for count in (1, 3, 100, len(every), len(every) + 5):
        found = await pager.page(await pager.before_the_end(count), limit=10_000)
        assert [item.id for item in found.items] == [item.id for item in every][-count:]
        assert not found.more
    produced = EventPager(parts.log, parts.run.id, types=("experience.produced",))
    two = (await produced.page(await produced.before_the_end(2), limit=10_000)).items
    assert [item.id for item in two] == [item.id for item in every if item.type == "experience.produced"][-2:]
    # Others write so much afterwards that nothing of it is among the records that are looked at.
    monkeypatch.setattr(event_pages, "SCANNED_BACK_RECORDS", 6000)
    monkeypatch.setattr(event_pages, "SCANNED_RECORDS", 600)
    last_ns = time_ns_of(every[-1].time)
    clock = ManualClock(last_ns + 3600 * 10**9)
    writer = Writer(source="t", clock=clock, ids=SeededIds(clock, 1))
    for partition in set(await parts.log.heads()) & set(partitions_of(parts.run.id)):
        fences = [Fence(role="trainer", owner=EXPERIMENT, epoch=n, previous=n - 1) for n in range(1, 1500)]
        await parts.log.append([writer.draft(event, experiment=UUID(int=4), partition=partition) for event in fences])
    heads = {each: mark for each, mark in (await parts.log.heads()).items() if each in partitions_of(parts.run.id)}
    assert await pager.before_the_end(5) == {partition: mark.next_offset for partition, mark in heads.items()}

    async def told_by_the_tables() -> int:
        return last_ns + 1

    page = await pager.page(await pager.before_the_end(5, until_ns=told_by_the_tables), limit=5)
    found_ids = [item.id for item in page.items]
    while len(found_ids) < 5:
        page = await pager.page(decode_cursor(parts.run.id, page.next), limit=5 - len(found_ids))
        found_ids += [item.id for item in page.items]
    assert found_ids == [item.id for item in every][-5:]
    nobody = EventPager(parts.log, UUID(int=3))
    assert (await nobody.page(await nobody.before_the_end(5), limit=10)).items == []
