"""The one path from a record to the event folded by readers; every reader of the log uses it.

    record ─► attributes ─► wanted? ─► event ─► fences ─► effective
                  │                      │         └───── void: the writer did not hold the role that owns the type
                  └──────────────────────┴─────────────── foreign (`rftd.streams.log.deadletters`)

Void and foreign records change nothing for any reader. A record of a known type in a newer version raises
UnknownVersionError: a reader skipping the record would be wrong for ever. An event stored twice is returned twice, as
only a fold knows how far back its memory reaches (`rftd.streams.folds.ranges`); a repeated fence is void. Unwanted
records are not decoded, and their fences are not applied.

The checker of the log (`rftd.streams.verify`) has its own reader, to keep a fault here from hiding.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple
from uuid import UUID

from rftd.ops.errors import CodecError
from rftd.streams.events.catalogue import UnknownVersionError
from rftd.streams.log.codec import decode_head
from rftd.streams.log.deadletters import decode_routed, head_of
from rftd.streams.log.envelope import Decoded, Head, Record
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition

Wanted = Callable[[Head], bool]
"""A filter by a record's attributes; records for which it returns False are not decoded."""


class Ruling(NamedTuple):
    """A decoded event, and whether it takes effect."""

    decoded: Decoded
    """The decoded event."""
    effective: bool
    """False if the record is void: its writer did not own the role at that position."""


def ruling(record: Record, fences: FenceView, head: Head | None = None) -> Ruling:
    """Decodes the next record of its partition and judges it by the fences; an effective fence is applied to them.

    `head` holds the record's attributes, if already decoded. Raises CodecError, with the reason, for a foreign record;
    UnknownVersionError, a CodecError too, for a newer version.
    """
    if head is None:
        head = decode_head(record)
    # Run, projector and metrics of one daemon each decode for themselves, at their own pace. A cache of decoded records
    # between them was measured (16 and 1 MiB, experiences of 10 KB) and saved nothing, 23.7 against 23.6 us of CPU: the
    # arrays of an event kept for the slowest reader are copied into cold memory, at the cost of decoding twice into
    # memory freed at once.
    decoded = decode_routed(head, record)
    return Ruling(decoded, fences.admit(record.partition, head, decoded.event))


def ruling_if_ours(record: Record, fences: FenceView, is_wanted: Wanted | None = None) -> Ruling | None:
    """Judges the next record of its partition as `ruling` does; None for a foreign or unwanted record.

    Raises UnknownVersionError.
    """
    # The attributes decide before the payload is decoded: most records of a busy log are other experiments'.
    head = head_of(record)
    if head is None or (is_wanted is not None and not is_wanted(head)):
        return None
    try:
        return ruling(record, fences, head)
    except UnknownVersionError:
        raise  # a CodecError too, but one that must stop the reader
    except CodecError:
        return None


def effective(record: Record, fences: FenceView, is_wanted: Wanted | None = None) -> Decoded | None:
    """Decodes the next record of its partition; None for one without effect. Raises UnknownVersionError."""
    judged = ruling_if_ours(record, fences, is_wanted)
    return judged.decoded if judged is not None and judged.effective else None


async def effective_records(
    log: EventLog,
    partition: Partition,
    fences: FenceView,
    *,
    start: int = 0,
    end: int | None = None,
    is_wanted: Wanted | None = None,
) -> AsyncGenerator[Decoded, None]:
    """Yields the effective events of a partition from offset `start` up to `end`, or to the log's end on reaching it.

    Raises UnknownVersionError.
    """
    offset = start
    # A read may return fewer records than exist; only an empty one marks the end of the log.
    while (end is None or offset < end) and (records := await log.read(partition, offset)):
        offset = records[-1].offset + 1
        for record in records:
            if end is not None and record.offset >= end:
                return
            decoded = effective(record, fences, is_wanted)
            if decoded is not None:
                yield decoded


def of_experiment(experiment: UUID) -> Wanted:
    """Returns a filter accepting records of one experiment, and records of no experiment."""

    def is_wanted(head: Head) -> bool:
        return head.experiment is None or head.experiment == experiment

    return is_wanted
