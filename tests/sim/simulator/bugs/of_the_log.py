"""A log that breaks its promises, and clients that write what none should."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rftd.ops.ids import derive
from rftd.streams.events.step import GenerationStarted
from rftd.streams.log import topics
from rftd.streams.log.chain import Mark, link
from rftd.streams.log.codec import decode_as, decode_head
from rftd.streams.log.envelope import Draft, Position, Record
from rftd.streams.log.topics import partition_of
from rftd.streams.memory import MemoryLog
from rftd.workers.hosts.membership import Membership
from simulator.bugs.bug import Bug, instead


def _afterwards(spoil: Any) -> Any:
    """An append that spoils the log once it is done."""

    def make(take: Any) -> Any:
        def taking(self: MemoryLog, drafts: Sequence[Draft]) -> list[Position]:
            positions: list[Position] = take(self, drafts)
            for draft, place in zip(drafts, positions, strict=True):
                spoil(self, draft, self._records[place.partition])
            return positions

        return taking

    return instead(MemoryLog, "_take", make)


def _lose_the_last(log: MemoryLog, records: list[Record]) -> None:
    lost = records.pop()
    log._positions.pop(decode_head(lost).id.bytes, None)
    log._tail.advance((), {lost.partition: Mark(lost.offset, records[-1].chain)})


def _lose_a_tail(log: MemoryLog, draft: Draft, records: list[Record]) -> None:
    if draft.partition.stream == topics.EXPERIENCES and len(records) == 3:
        _lose_the_last(log, records)


def _leave_a_gap(_log: MemoryLog, draft: Draft, records: list[Record]) -> None:
    if draft.partition.stream == topics.WEIGHTS and [record.offset for record in records] == [0, 1, 2, 3, 4]:
        del records[2]


def _break_the_chain(_log: MemoryLog, draft: Draft, records: list[Record]) -> None:
    last = records[-1]
    if draft.partition.stream == topics.CHECKPOINTS and last.offset == 2:
        records[-1] = Record(last.partition, last.offset, bytes(len(last.chain)), last.head, last.value)


def _forget_what_is_remembered(log: MemoryLog, draft: Draft, _records: list[Record]) -> None:
    """A checkpoint has just remembered the heads, and the newest answers go."""
    if _type(draft) == "checkpoint.committed":
        for partition, records in log._records.items():
            if partition.stream == topics.EXPERIENCES and len(records) > 1:
                _lose_the_last(log, records)


def _take_everything_again(log: MemoryLog, draft: Draft, _records: list[Record]) -> None:
    log._positions.pop(draft.id.bytes, None)


def _write_an_unknown_version(log: MemoryLog, draft: Draft, _records: list[Record]) -> None:
    """A record of an unknown version is appended to another partition, so that only who reads everything meets it."""
    if _type(draft) == "experiment.completed":
        head = decode_head(Record(draft.partition, 0, b"", draft.head, draft.value))
        others = (derive(head.id, number) for number in range(1000))
        other = next(each for each in others if partition_of(topics.WEIGHTS, each).number != draft.partition.number)
        newer = msgspec.structs.replace(
            head, id=derive(head.id, "newer"), type="weights.published", version=99, experiment=other
        )
        data = msgspec.msgpack.Encoder(uuid_format="bytes").encode(newer)
        log._take([Draft(partition_of(topics.WEIGHTS, other), newer.id, data, draft.value)])


def _rewrite_the_spine(log: MemoryLog, draft: Draft, records: list[Record]) -> None:
    """At the end somebody changes why the first generation began, and makes every chain anew."""
    if _type(draft) != "experiment.completed":
        return
    first = next(at for at, each in enumerate(records) if decode_head(each).type == "generation.started")
    chain = records[first - 1].chain
    for at in range(first, len(records)):
        old = records[at]
        value = old.value
        if at == first:
            event = msgspec.structs.replace(decode_as(old, GenerationStarted), reason="another one")
            value = msgspec.msgpack.Encoder(uuid_format="bytes").encode(event)
        chain = link(chain, old.head, value)
        records[at] = Record(old.partition, old.offset, chain, old.head, value)
    log._tail.advance((), {draft.partition: Mark(records[-1].offset + 1, chain)})


def _type(draft: Draft) -> str:
    return decode_head(Record(draft.partition, 0, b"", draft.head, draft.value)).type


def _leave_for_another(leave: Any) -> Any:
    async def leaving(self: Membership, error: Any = None) -> None:
        self.experiment = derive(self.experiment, "another")
        await leave(self, error)

    return leaving


BUGS = (
    Bug("the log loses an acknowledged tail", "acknowledged", _afterwards(_lose_a_tail)),
    Bug("the log leaves a gap", "verify: gapless", _afterwards(_leave_a_gap)),
    Bug("the log breaks its chain", "verify: chain", _afterwards(_break_the_chain)),
    Bug("the log forgets what is remembered", "verify: heads-remembered", _afterwards(_forget_what_is_remembered)),
    Bug("the spine is rewritten with its chain", "verify: spine-is-as-read", _afterwards(_rewrite_the_spine)),
    Bug("the log takes a repeated draft again", "verify: unique", _afterwards(_take_everything_again)),
    Bug("an event has an unknown version", "verify: readable", _afterwards(_write_an_unknown_version)),
    Bug("a worker leaves an unknown experiment", "verify: submitted", instead(Membership, "leave", _leave_for_another)),
)
