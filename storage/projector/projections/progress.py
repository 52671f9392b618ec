"""The projector's own progress: the owners of roles, from every stream, and the events that must not count twice.

A log may, rarely, hold an event twice in a partition. For most events the first position wins already; `KINDS` are
events replacing earlier ones, or keyed by position.
"""

from __future__ import annotations

from typing import Final

from rftd.storage.database.tables.progress import Fences, Once
from rftd.storage.projector.projections.projection import Projection, owner_of
from rftd.storage.projector.upserts import Changes, Rule, Upsert
from rftd.streams.events import batch, checkpoint, experiment, weights
from rftd.streams.events.experiment import TURNS, CheckpointChosen
from rftd.streams.events.registry import Event
from rftd.streams.log.envelope import Decoded

KINDS: Final[frozenset[type[Event]]] = frozenset(
    (
        *TURNS,
        experiment.ExperimentWarned,
        experiment.ExperimentPrioritized,
        experiment.ExperimentAnnotated,
        batch.ExperiencePrioritized,
        weights.WeightsPublished,
        weights.WeightsRetired,
        checkpoint.CheckpointCommitted,
        checkpoint.CheckpointDeleted,
        CheckpointChosen,
    )
)
"""Events that must not count twice when repeated in their partition."""
FENCED: Final = Upsert(Fences, prefix="fenced", owns=("epoch", "owner"), rule=Rule.LAST)
"""Upsert of the columns of a fence, owned by the last one."""
APPLIED: Final = Upsert(Once, prefix="applied")
"""Upsert of the columns of an applied event."""


def _put_fence(event: experiment.Fence, decoded: Decoded, changes: Changes) -> None:
    """Sets the owner of a role in a partition."""
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


def _put_applied(event: Event, decoded: Decoded, changes: Changes) -> None:
    """Records the id of an applied event, so that a repetition of the event does not count."""
    changes.put(
        APPLIED,
        decoded,
        stream=decoded.partition.stream,
        partition=decoded.partition.number,
        event=decoded.head.id.bytes,
    )


# Two projections with a name and a version each: the names are stored, and a changed set would refill every table of an
# existing database.
FENCES: Final = Projection(name="fences", version=1, tables=(Fences,), handlers={experiment.Fence: _put_fence})
"""Projection of fences into a table with the owner of each role in each partition."""
ONCE: Final = Projection(name="once", version=1, tables=(Once,), handlers=dict.fromkeys(KINDS, _put_applied))
"""Projection of the events that must not count twice into a table of their ids."""
