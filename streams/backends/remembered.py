"""Remembered heads against a log: the part of `check_heads` that every backend shares."""

from __future__ import annotations

from rftd.ops.errors import LogLossError
from rftd.streams.chain import Mark
from rftd.streams.topics import Partition


def check_mark(partition: Partition, mark: Mark, *, head: Mark, start: Mark) -> None:
    """Compares a remembered head with what needs no record to be read. Raises LogLossError."""
    if mark.next_offset > head.next_offset:
        raise LogLossError(
            f"{partition}@{mark.next_offset - 1} was acknowledged and is gone: the log ends before {head.next_offset}",
            where=f"{partition}@{head.next_offset}",
            fix="restore the log from a backup; run `rftd verify` to see what remains",
        )
    for known in (head, start):
        if mark.next_offset == known.next_offset and mark.chain != known.chain:
            raise different(partition, mark)


def different(partition: Partition, mark: Mark) -> LogLossError:
    """The error for a remembered head whose record is another one now."""
    return LogLossError(
        f"{partition}@{mark.next_offset - 1} is not the record that was acknowledged",
        where=f"{partition}@{mark.next_offset - 1}",
        fix="this is another log, or it was rewritten: restore the right one from a backup",
    )
