"""Follows the log for the metrics: from where it stands now, with the names and states of what came before."""

from __future__ import annotations

import asyncio
from typing import Final

from rftd.daemon.metrics_feed import MetricsFeed
from rftd.ops.errors import CodecError
from rftd.streams import topics
from rftd.streams.chain import Heads
from rftd.streams.deadletters import decode_ours, head_of, understood_with
from rftd.streams.envelope import Record
from rftd.streams.fencing import FenceView
from rftd.streams.log import EventLog
from rftd.streams.topics import EVERY_PARTITION

GATHER_S: Final = 0.05
"""Records gather for so long: nobody scrapes more often, and each look costs."""


async def follow_metrics(log: EventLog, feed: MetricsFeed) -> None:
    """Feeds every effective record that arrives, until cancelled."""
    heads, fences = await log.heads(), FenceView()
    await _recall(log, feed, heads, fences)
    subscription = log.subscribe({p: heads[p].next_offset if p in heads else 0 for p in EVERY_PARTITION})
    try:
        while True:
            for record in await subscription.next(wait_s=5.0):
                _show(record, feed, fences)
            await asyncio.sleep(GATHER_S)
    finally:
        await subscription.close()


async def _recall(log: EventLog, feed: MetricsFeed, heads: Heads, fences: FenceView) -> None:
    """Reads the life events below `heads`; payloads of plans and steps are not decoded."""
    for partition in (each for each in heads if each.stream == topics.EXPERIMENTS):
        offset = 0
        while offset < heads[partition].next_offset:
            records = await log.read(partition, offset)
            for record in records:
                head = head_of(record)
                if head is not None and (head.type == "fence" or head.type.startswith("experiment.")):
                    decoded = understood_with(head, record)
                    if decoded is not None and fences.admit(partition, head, decoded.event):
                        feed.recall(decoded)
            offset = records[-1].offset + 1 if records else heads[partition].next_offset


def _show(record: Record, feed: MetricsFeed, fences: FenceView) -> None:
    try:
        decoded = decode_ours(record)
    except CodecError:
        return  # the projector reports it as a dead letter
    if fences.admit(record.partition, decoded.head, decoded.event):
        feed.observe(decoded)
