"""Who owns which role in which partition, from every stream."""

from __future__ import annotations

from typing import Final

from rftd.storage.projections.projection import Projection, owner_of
from rftd.storage.tables.progress import Fences
from rftd.storage.upserts import Changes, Rule, Upsert
from rftd.streams.codec import Decoded
from rftd.streams.events import experiment

FENCED: Final = Upsert(Fences, place="fenced", owns=("epoch", "owner"), rule=Rule.LAST)


def _fenced(event: experiment.Fence, decoded: Decoded, changes: Changes) -> None:
    changes.put(
        FENCED,
        decoded,
        stream=decoded.partition.stream,
        partition=decoded.partition.number,
        experiment=owner_of(decoded),
        role=event.role,
        epoch=event.epoch,
        owner=event.owner.bytes,
    )


PROJECTION: Final = Projection(name="fences", version=1, tables=(Fences,), handlers={experiment.Fence: _fenced})
