"""Retention of the streams that are no truth: heartbeats are forgotten after a while, nothing else ever is."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from rftd.ops.clock import Clock
from rftd.ops.errors import LogFullError
from rftd.streams.log.deadletters import head_of
from rftd.streams.log.envelope import Record
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import TOPICS, Partition, Topic

EVERY_S: Final = 60.0


async def enforce_retention(log: EventLog, clock: Clock) -> None:
    """Truncates what is older than its stream's retention, again and again, until cancelled."""
    while True:
        for topic in TOPICS.values():
            if topic.retention_s is not None:
                with suppress(LogFullError):  # a full disk leaves no room even to forget; another time
                    await _truncate(log, topic, topic.retention_s, clock)
        await clock.sleep(EVERY_S)


async def _truncate(log: EventLog, topic: Topic, retention_s: float, clock: Clock) -> None:
    """Forgets the records of one topic that are older than `retention_s`."""
    now_ns = clock.now_ns()
    kept_ns = int(retention_s * 1e9)
    for number in range(topic.partitions):
        partition = Partition(topic.name, number)
        before = 0
        while records := await log.read(partition, before):
            # The absolute value: a time that lies as far ahead is no time. A clock was wrong, and its records must not
            # keep all that follow them for ever, for a partition is truncated from its beginning.
            kept = [record for record in records if abs(now_ns - _time_ns(record)) <= kept_ns]
            if kept:
                before = kept[0].offset
                break
            before = records[-1].offset + 1
        if before:
            await log.truncate(partition, before)


def _time_ns(record: Record) -> int:
    """The time at which a record was written; what is not ours is as old as can be."""
    head = head_of(record)
    return head.time_ns if head is not None else 0
