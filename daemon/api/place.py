"""A record's place as text: `stream/partition@offset`, as `?after=` takes it and answers give it."""

from __future__ import annotations

import re
from typing import Final

from rftd.ops.errors import UsageError
from rftd.streams.envelope import Position
from rftd.streams.topics import TOPICS, Partition

_FORM: Final = re.compile(r"([a-z.]{1,40})/(\d{1,4})@(\d{1,18})")


def show(position: Position) -> str:
    """The text of a position."""
    return f"{position.partition}@{position.offset}"


def parse(text: str) -> Position:
    """The position of a text. Raises UsageError."""
    match = _FORM.fullmatch(text)
    topic = TOPICS.get(match[1]) if match else None
    if match is None or topic is None or int(match[2]) >= topic.partitions:
        raise UsageError(
            f"{text[:80]!r} is no position in the log", field="after", fix="use the `position` of an earlier answer"
        )
    return Position(Partition(match[1], int(match[2])), int(match[3]))
