"""The one way from a record to the event that a fold takes in, on which every reader of the log goes (rule 2).

    record ─► attributes ─► wanted? ─► event ─► fences ─► effective
                  │                      │         └───── void: the writer did not hold the role that owns the type
                  └──────────────────────┴─────────────── not ours (`rftd.streams.log.deadletters`)

Neither a void record nor one that is not ours changes anything for anybody. A record of a newer version of a type that
is known raises UnknownVersionError: a reader that left it out would be wrong for ever. An event that lies in the log
twice is given out twice, for only the fold knows how far back it remembers (`rftd.streams.folds.once`); a repeated
fence is void. Records that nobody wanted are not decoded, and their fences are not taken in.

Who judges the log itself (`rftd.streams.verify`) reads on its own, so that a fault here does not hide itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple
from uuid import UUID

from rftd.ops.errors import CodecError
from rftd.streams.events.catalogue import UnknownVersionError
from rftd.streams.log.codec import Decoded, decode_head
from rftd.streams.log.deadletters import decode_routed, head_of
from rftd.streams.log.envelope import Head, Record
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition

Wanted = Callable[[Head], bool]
"""A reader's choice, by a record's attributes: True for those that it wants."""


class Ruling(NamedTuple):
    """A record that is ours, and whether it counts."""

    decoded: Decoded
    effective: bool
    """False: a fence, or the lack of one, made it void."""


def ruling(record: Record, fences: FenceView, head: Head | None = None) -> Ruling:
    """The event of the next record of its partition, with what the fences say of it; a fence that counts is taken in.

    `head` are the record's attributes, if they were decoded before. Raises CodecError, with the reason, for a record
    that is not ours; UnknownVersionError, a CodecError too, for one of a newer version.
    """
    if head is None:
        head = decode_head(record)
    # Run, projector and metrics of one daemon each decode for themselves, at their own pace. A cache of decoded records
    # between them was measured (16 and 1 MiB, experiences of 10 KB) and saved nothing, 23.7 against 23.6 us of CPU: the
    # arrays of an event that lives until the slowest reader came are copied into cold memory, which costs as much as
    # decoding twice into memory that is freed at once.
    decoded = decode_routed(head, record)
    return Ruling(decoded, fences.admit(record.partition, head, decoded.event))


def ruling_if_ours(record: Record, fences: FenceView, wanted: Wanted | None = None) -> Ruling | None:
    """The ruling on the next record of its partition; None for one that is not ours or not wanted.

    Raises UnknownVersionError.
    """
    # The attributes decide before the payload is decoded: most records of a busy log are other experiments'.
    head = head_of(record)
    if head is None or (wanted is not None and not wanted(head)):
        return None
    try:
        return ruling(record, fences, head)
    except UnknownVersionError:
        raise  # a CodecError too, and the one that must not be passed over
    except CodecError:
        return None


def effective(record: Record, fences: FenceView, wanted: Wanted | None = None) -> Decoded | None:
    """The event of the next record of its partition if it has an effect, else None. Raises UnknownVersionError."""
    found = ruling_if_ours(record, fences, wanted)
    return found.decoded if found is not None and found.effective else None


async def effective_records(
    log: EventLog,
    partition: Partition,
    fences: FenceView,
    *,
    start: int = 0,
    end: int | None = None,
    wanted: Wanted | None = None,
) -> AsyncGenerator[Decoded, None]:
    """The effective events of a partition from offset `start` up to `end`, or to where the log ends when it gets there.

    Raises UnknownVersionError.
    """
    offset = start
    # A read may bring fewer records than there are; only an empty one says that the log ends here.
    while (end is None or offset < end) and (records := await log.read(partition, offset)):
        offset = records[-1].offset + 1
        for record in records:
            if end is not None and record.offset >= end:
                return
            decoded = effective(record, fences, wanted)
            if decoded is not None:
                yield decoded


def of_experiment(experiment: UUID) -> Wanted:
    """Wants the records of one experiment, and those of no experiment."""

    def wanted(head: Head) -> bool:
        return head.experiment is None or head.experiment == experiment

    return wanted
