"""Records of a foreign program, for every partition of the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

import msgspec

from rftd.ops.clock import Clock
from rftd.ops.ids import Ids
from rftd.streams.events.catalogue import definitions
from rftd.streams.log import topics
from rftd.streams.log.envelope import Draft, Head
from rftd.streams.log.topics import EVERY_PARTITION, Partition, partition_of

_DEEP: Final = b"\x91" * 5000 + b"\xc0"
"""Lists in lists, more of them than a stack has room for."""


def garbage_of(experiment: UUID, partition: Partition, ids: Ids, clock: Clock) -> Iterator[Draft]:
    """Everything that is not ours, bound for one partition, most of it as if it belonged to the experiment."""

    def draft(head: bytes, value: bytes = b"\x80") -> Draft:
        return Draft(partition, ids.new(), head, value)

    def head(type: str, *, of: UUID | None = experiment) -> bytes:
        return msgspec.msgpack.encode(
            Head(id=ids.new(), type=type, version=1, experiment=of, source="stranger", time_ns=clock.now_ns()),
        )

    yield draft(b"", b"")
    yield draft(b"", b'{"hello": 1}')
    yield draft(b"\xff\x00garbage", bytes(range(256)))
    yield draft(head("order.placed"))
    yield draft(_DEEP)
    for definition in definitions():
        if definition.stream == partition.stream:
            yield draft(head(definition.name), b"\xc1 no payload")
            yield draft(head(definition.name), msgspec.msgpack.encode(["no", "map"]))
            yield draft(head(definition.name), b"\x81\xa6nobody" + _DEEP)
    if partition.stream != topics.EXPERIMENTS or partition != partition_of(topics.EXPERIMENTS, experiment):
        failed = msgspec.msgpack.encode({"code": "X", "reason": "a stranger says so", "role": ""})
        yield draft(head("experiment.failed"), failed)
        yield draft(head("experiment.completed"))
    if partition.stream == topics.EXPERIMENTS:
        yield draft(head("experiment.completed", of=None))
    yield draft(head("batch.planned", of=None), msgspec.msgpack.encode({"batch": 1}))


def garbage(experiment: UUID, ids: Ids, clock: Clock) -> list[Draft]:
    """A foreign program's records for every partition there is."""
    return [draft for partition in EVERY_PARTITION for draft in garbage_of(experiment, partition, ids, clock)]
