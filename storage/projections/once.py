"""Which events must not count twice: those that win over earlier ones, or whose key is their own place.

A log may rarely hold one event twice in a partition. For all other events the first one wins by its place already.
"""

from __future__ import annotations

from typing import Final

from rftd.storage.projections.projection import Projection
from rftd.storage.tables.progress import Once
from rftd.storage.upserts import Changes, Upsert
from rftd.streams.codec import Decoded
from rftd.streams.events import batch, checkpoint, experiment, weights
from rftd.streams.events.registry import Event
from rftd.streams.folds.spine import TURNS

KINDS: Final[frozenset[type[Event]]] = frozenset(
    (
        *TURNS,
        experiment.ExperimentWarned,
        experiment.ExperimentPrioritized,
        batch.ExperiencePrioritized,
        weights.WeightsPublished,
        weights.WeightsRetired,
        checkpoint.CheckpointCommitted,
        checkpoint.CheckpointDeleted,
    )
)
APPLIED: Final = Upsert(Once, place="applied")


def _applied(event: Event, decoded: Decoded, changes: Changes) -> None:
    changes.put(
        APPLIED,
        decoded,
        stream=decoded.partition.stream,
        partition=decoded.partition.number,
        event=decoded.head.id.bytes,
    )


PROJECTION: Final = Projection(name="once", version=1, tables=(Once,), handlers=dict.fromkeys(KINDS, _applied))
