"""Retention of the streams outside `TRUTH`: heartbeats are deleted after a while, and nothing else ever is."""

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
"""Pause between two deletions of old records."""


async def enforce_retention(log: EventLog, clock: Clock) -> None:
    """Deletes records older than their stream's retention time, every minute, until cancelled; a full disk
    delays it.
    """
    while True:
        for topic in TOPICS.values():
            if topic.retention_s is not None:
                with suppress(LogFullError):  # a full disk leaves no room even to delete; try later
                    await _truncate(log, topic, topic.retention_s, clock)
        await clock.sleep(EVERY_S)


async def _truncate(log: EventLog, topic: Topic, retention_s: float, clock: Clock) -> None:
    """Deletes the beginning of each partition of a topic, up to the first record written within `retention_s` seconds
    of now.
    """
    now_ns = clock.now_ns()
    kept_ns = int(retention_s * 1e9)
    for number in range(topic.partitions):
        partition = Partition(topic.name, number)
        before = 0
        while records := await log.read(partition, before):
            # The absolute difference: a time far ahead is invalid too. It comes from a wrong clock, and such a record
            # must not keep all later ones for ever, for a partition is truncated from its beginning.
            recent = [record for record in records if abs(now_ns - _time_ns(record)) <= kept_ns]
            if recent:
                before = recent[0].offset
                break
            before = records[-1].offset + 1
        if before:
            await log.truncate(partition, before)


def _time_ns(record: Record) -> int:
    """Returns the time of a record's writing, in nanoseconds; 0, the oldest time, for foreign records."""
    head = head_of(record)
    return head.time_ns if head is not None else 0
