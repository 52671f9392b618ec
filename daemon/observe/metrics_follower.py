"""Follows the log for the metrics: from where it stands now, with the names and states of what came before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Final
from uuid import UUID

import msgspec

from rftd.daemon.observe.metrics_answers import LeaseAnswer
from rftd.daemon.observe.metrics_counted import Counted
from rftd.daemon.observe.metrics_feed import MetricsFeed
from rftd.daemon.run.registry import Registry
from rftd.ops import limits
from rftd.ops.decoding import UNREADABLE, msgpack_decoder
from rftd.ops.errors import CodecError
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.registry import definition_of
from rftd.streams.events.task import EvalLeased, TaskLeased
from rftd.streams.log import topics
from rftd.streams.log.effective import ruling
from rftd.streams.log.envelope import Decoded, Record
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.log import EventLog, Subscription
from rftd.streams.log.topics import EVERY_PARTITION

GATHER_S: Final = 0.2
"""The time for which records gather: nobody scrapes more often, and each look costs."""
ROUND_RECORDS: Final = 8 * limits.FETCH_RECORDS
"""The most records of one look, between which the loop has its turn."""
IDLE_S: Final = 60.0

_PRODUCED: Final = definition_of(ExperienceProduced)
_decoder: Final = msgpack_decoder(Counted)


class _Brief(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The fields of `Head`, without the objects that take the longest to make."""

    id: msgspec.Raw
    type: str
    version: int
    experiment: bytes | None
    source: str
    time_ns: int
    role: str = ""
    epoch: msgspec.Raw = msgspec.Raw()
    causation: msgspec.Raw = msgspec.Raw()
    correlation: msgspec.Raw = msgspec.Raw()
    traceparent: str | None = None


_head_decoder: Final = msgpack_decoder(_Brief)


async def follow_metrics(log: EventLog, feed: MetricsFeed, known: Callable[[], Awaitable[Registry]]) -> None:
    """Feeds every effective record that arrives, until cancelled; `known` are the experiments there are."""
    # Heads before the registry: a record that comes in between is read twice, as a past state and as news, where the
    # other order would miss it.
    heads = await log.heads()
    registry = await known()
    # In order of submission, which is that of `NAME@2`; the registry has them in the order in which it read them.
    for entry in sorted(registry.entries.values(), key=lambda entry: (entry.submitted_ns, entry.id)):
        feed.remember(entry.id, entry.spine)
    # `midway`: this view begins in the middle of the streams, so a fence that it has not seen may have come before.
    fences = FenceView(registry.fences.owners(), midway=True)
    subscription = log.subscribe({p: heads[p].next_offset if p in heads else 0 for p in EVERY_PARTITION})
    try:
        while True:
            show(await _arrived(subscription, GATHER_S if feed.groups.ending else IDLE_S), feed, fences)
            await asyncio.sleep(GATHER_S)
    finally:
        await subscription.close()


def show(records: Sequence[Record], feed: MetricsFeed, fences: FenceView) -> None:
    """Feeds records, each partition in order. Plans come after experiences, and the rest after the names."""
    experiences: list[Record] = []
    others: list[Record] = []
    spine: list[Record] = []
    by_stream = {topics.EXPERIENCES: experiences, topics.EXPERIMENTS: spine}
    for record in records:
        by_stream.get(record.partition.stream, others).append(record)
    # Leases are known before their answers are looked at, and all of them counted only after the names.
    effective_others = list(_effective(others, feed, fences))
    for decoded in effective_others:
        if isinstance(decoded.event, TaskLeased | EvalLeased):
            feed.answers.leased(decoded.event)
    slow = [record for record in experiences if not _counted(record, feed)]
    for decoded in chain(_effective(spine, feed, fences), effective_others, _effective(slow, feed, fences)):
        feed.observe(decoded)
    feed.settle()


def _effective(records: Sequence[Record], feed: MetricsFeed, fences: FenceView) -> Iterator[Decoded]:
    """Yields the events of records that have an effect; records of strangers and replaced processes count as void."""
    for record in records:
        try:
            decoded, effective = ruling(record, fences)
        except CodecError:
            continue  # the projector reports it as a dead letter
        feed.void.take(decoded, fences, effective=effective)
        if effective:
            yield decoded


def _counted(record: Record, feed: MetricsFeed) -> bool:
    """True if the record, of the stream of experiences, was one that could be fed without decoding all of it."""
    try:
        head = _head_decoder.decode(record.head)
        if head.type != _PRODUCED.name or head.version != _PRODUCED.version or head.role or head.experiment is None:
            return False  # what a role writes may be void
        event = _decoder.decode(record.value)
        answer = LeaseAnswer(UUID(bytes=head.experiment), event.lease, head.source, record.partition, record.offset)
        feed.answers.take(answer, partial(feed.produced, head.experiment, head.time_ns, event, head.traceparent))
    except (*UNREADABLE, ValueError):
        return False  # `ruling` tells what it is
    return True


async def _arrived(subscription: Subscription, idle_s: float) -> list[Record]:
    """All that is there, once there is something, or nothing after `idle_s`."""
    found = await subscription.next(wait_s=idle_s)
    while len(found) < ROUND_RECORDS and (more := await subscription.next(wait_s=0.0)):
        found += more
    return found
