"""`LogPlace`: which fields of events are places in the log, said in each field's annotation.

Places change when an experiment moves into another log: see `rftd.streams.portable.positions`.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final, TypeAlias

from rftd.streams.log import topics
from rftd.streams.log.bounds import Offset
from rftd.streams.log.marked import FieldMark, marked


class PlaceKind(Enum):
    """The part that a place plays for the event that names it."""

    RECORD = "record"
    """The offset of a record of the experiment that lies below the event."""
    POINTER = "pointer"
    """The offset of a record that may be missing, or somebody else's."""
    READ = "read"
    """The end of what was read of a partition (rule 6)."""
    HEADS = "heads"
    """Heads that the writer remembers (rule 10)."""
    START = "start"
    """Heads below which nothing of the experiment lies."""
    DIGEST = "digest"
    """A digest over records whose places change: it says nothing in another log."""
    HISTORY = "history"
    """Told of the log of that time, and never looked up again."""


class LogPlace(FieldMark):
    """The field is a place. Its holder's `partition` completes an offset, and its `stream`, unless that is given."""

    def __init__(self, kind: PlaceKind, stream: str = "") -> None:
        self.kind: Final = kind
        self.stream: Final = stream


class RememberedHeads(LogPlace):
    """The field holds heads: whoever reads the event later is a witness of them (`rftd.streams.log.losses`)."""

    def __init__(self) -> None:
        super().__init__(PlaceKind.HEADS)


# A new place in an event takes one of these, or an import leaves the number of another log in it: a test of every
# registered type looks for offsets without a mark.
TaskOffset: TypeAlias = Annotated[Offset, marked(LogPlace(PlaceKind.RECORD, topics.TASKS))]
ExperienceOffset: TypeAlias = Annotated[Offset, marked(LogPlace(PlaceKind.RECORD, topics.EXPERIENCES))]
PointerOffset: TypeAlias = Annotated[Offset, marked(LogPlace(PlaceKind.POINTER))]
ReadOffset: TypeAlias = Annotated[Offset, marked(LogPlace(PlaceKind.READ))]
HEADS: Final = marked(RememberedHeads())
START: Final = marked(LogPlace(PlaceKind.START))
DIGEST: Final = marked(LogPlace(PlaceKind.DIGEST))
HISTORY: Final = marked(LogPlace(PlaceKind.HISTORY))
