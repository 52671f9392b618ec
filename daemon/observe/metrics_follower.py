"""Follows the log for the metrics, from its present end, with the names and states of earlier records."""

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
"""Seconds for collecting records before they are counted together."""
ROUND_RECORDS: Final = 8 * limits.FETCH_RECORDS
"""Maximum number of records counted in one turn of the event loop."""
IDLE_S: Final = 60.0
"""Seconds without records after which ended experiments are expired all the same."""

_PRODUCED: Final = definition_of(ExperienceProduced)
"""Definition of `experience.produced`."""
_decoder: Final = msgpack_decoder(Counted)
"""Decoder of the counted fields of an experience."""


class _Brief(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The fields of `Head`, without the objects most expensive to create."""

    id: msgspec.Raw
    """Id of the event, undecoded."""
    type: str
    """Type of the event."""
    version: int
    """Version of the event's schema."""
    experiment: bytes | None
    """Id of the experiment as bytes; None without one."""
    source: str
    """Name of the writer."""
    time_ns: int
    """Time of writing, in nanoseconds since 1970."""
    role: str = ""
    """Role of the writer; empty without one."""
    epoch: msgspec.Raw = msgspec.Raw()
    """Epoch of the writer's lease, undecoded."""
    causation: msgspec.Raw = msgspec.Raw()
    """Id of the causing event, undecoded."""
    correlation: msgspec.Raw = msgspec.Raw()
    """Key of the request, undecoded."""
    traceparent: str | None = None
    """Trace of the record; None without one."""


_head_decoder: Final = msgpack_decoder(_Brief)
"""Decoder of `_Brief`."""


async def follow_metrics(log: EventLog, feed: MetricsFeed, registry_now: Callable[[], Awaitable[Registry]]) -> None:
    """Passes every new effective record to `feed`, until cancelled; `registry_now` returns the existing experiments."""
    # Heads before the registry: a record arriving in between is read twice, as a past state and as news, while the
    # other order would miss it.
    heads = await log.heads()
    registry = await registry_now()
    # In order of submission, as for `NAME@2`; the registry has reading order.
    for registered in sorted(
        registry.entries.values(), key=lambda registered: (registered.submitted_ns, registered.id)
    ):
        feed.remember(registered.id, registered.spine)
    # `midway`: this view begins in the middle of the streams, so an unseen fence may have come before.
    fences = FenceView(registry.fences.owners(), midway=True)
    subscription = log.subscribe({p: heads[p].next_offset if p in heads else 0 for p in EVERY_PARTITION})
    try:
        while True:
            show(await _next_records(subscription, GATHER_S if feed.groups.ending else IDLE_S), feed, fences)
            await asyncio.sleep(GATHER_S)
    finally:
        await subscription.close()


def show(records: Sequence[Record], feed: MetricsFeed, fences: FenceView) -> None:
    """Passes records to `feed`, each partition in order; plans come after experiences."""
    experiences: list[Record] = []
    other_records: list[Record] = []
    spine: list[Record] = []
    by_stream = {topics.EXPERIENCES: experiences, topics.EXPERIMENTS: spine}
    for record in records:
        by_stream.get(record.partition.stream, other_records).append(record)
    # Leases are known before their answers are inspected, and all of them counted only after the names.
    effective_others = list(_effective_events(other_records, feed, fences))
    for decoded in effective_others:
        if isinstance(decoded.event, TaskLeased | EvalLeased):
            feed.answers.leased(decoded.event)
    slow = [record for record in experiences if not _feed_without_decoding(record, feed)]
    for decoded in chain(
        _effective_events(spine, feed, fences), effective_others, _effective_events(slow, feed, fences)
    ):
        feed.observe(decoded)
    feed.settle()


def _effective_events(records: Sequence[Record], feed: MetricsFeed, fences: FenceView) -> Iterator[Decoded]:
    """Yields the events of effective records; records of strangers and replaced processes count as void."""
    for record in records:
        try:
            decoded, effective = ruling(record, fences)
        except CodecError:
            continue  # reported by the projector as a dead letter
        feed.void.take(decoded, fences, effective=effective)
        if effective:
            yield decoded


def _feed_without_decoding(record: Record, feed: MetricsFeed) -> bool:
    """True if the record, from the stream of experiences, could be fed without decoding all of it."""
    try:
        head = _head_decoder.decode(record.head)
        if head.type != _PRODUCED.name or head.version != _PRODUCED.version or head.role or head.experiment is None:
            return False  # records written by a role may be void
        event = _decoder.decode(record.value)
        answer = LeaseAnswer(UUID(bytes=head.experiment), event.lease, head.source, record.partition, record.offset)
        feed.answers.take(answer, partial(feed.produced, head.experiment, head.time_ns, event, head.traceparent))
    except (*UNREADABLE, ValueError):
        return False  # `ruling` determines the kind of record
    return True


async def _next_records(subscription: Subscription, idle_s: float) -> list[Record]:
    """Returns all present records, as soon as there is one, or none after `idle_s` seconds."""
    records = await subscription.next(wait_s=idle_s)
    while len(records) < ROUND_RECORDS and (more := await subscription.next(wait_s=0.0)):
        records += more
    return records
