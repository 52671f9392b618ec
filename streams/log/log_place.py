"""`LogPlace`: marks the fields of events holding positions in the log, in each field's annotation.

Positions change when an experiment moves into another log: see `rftd.streams.portable.positions`.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final, TypeAlias

from rftd.streams.log import topics
from rftd.streams.log.bounds import Offset
from rftd.streams.log.marked import FieldMark, marked


class PlaceKind(Enum):
    """The meaning of a position for the event holding it."""

    RECORD = "record"
    """The offset of a record of the experiment, below the event."""
    POINTER = "pointer"
    """The offset of a record possibly missing, or of another experiment."""
    READ = "read"
    """The end of the range read of a partition (rule 6)."""
    HEADS = "heads"
    """Heads remembered by the writer (rule 10)."""
    START = "start"
    """Heads with no record of the experiment below them."""
    DIGEST = "digest"
    """A digest over records with changing positions, meaningless in another log."""
    HISTORY = "history"
    """Describes the log at the time of writing, and is never looked up again."""


class LogPlace(FieldMark):
    """Marks a field as a position. The holder's `partition` completes an offset, and so does its `stream` unless set
    here.
    """

    def __init__(self, kind: PlaceKind, stream: str = "") -> None:
        self.kind: Final = kind
        self.stream: Final = stream


class RememberedHeads(LogPlace):
    """Marks a field as heads: later readers of the event are witnesses of them (`rftd.streams.log.lost_records`)."""

    def __init__(self) -> None:
        super().__init__(PlaceKind.HEADS)


# A new position in an event needs one of these annotations, or an import leaves the number of another log in it: a test
# of every registered type looks for offsets without a mark.
TaskOffset: TypeAlias = Annotated[Offset, marked(LogPlace(PlaceKind.RECORD, topics.TASKS))]
ExperienceOffset: TypeAlias = Annotated[Offset, marked(LogPlace(PlaceKind.RECORD, topics.EXPERIENCES))]
PointerOffset: TypeAlias = Annotated[Offset, marked(LogPlace(PlaceKind.POINTER))]
ReadOffset: TypeAlias = Annotated[Offset, marked(LogPlace(PlaceKind.READ))]
HEADS: Final = marked(RememberedHeads())
START: Final = marked(LogPlace(PlaceKind.START))
DIGEST: Final = marked(LogPlace(PlaceKind.DIGEST))
HISTORY: Final = marked(LogPlace(PlaceKind.HISTORY))
