"""Weight versions and activations, from `rftd.weights`; checkpoints; overdue windows, from the spine."""

from __future__ import annotations

from typing import Final

from rftd.storage.database.tables.weights import Activations, Checkpoints, OverdueWindows, WeightVersions
from rftd.storage.projector.projections.projection import Projection, owner_of
from rftd.storage.projector.upserts import Changes, Rule, Upsert
from rftd.streams.events import checkpoint, weights
from rftd.streams.log.envelope import Decoded

# LAST: a resumed trainer publishes a version, or saves a step, again under the same key, with newer files.
PUBLISHED: Final = Upsert(
    WeightVersions,
    prefix="published",
    owns=("stage", "method", "path", "manifest", "checksum", "size_bytes"),
    rule=Rule.LAST,
)
"""Upsert of the columns owned by `weights.published`."""
RETIRED: Final = Upsert(WeightVersions, prefix="retired", owns=("retired_reason",), rule=Rule.LAST)
"""Upsert of the columns owned by `weights.retired`."""
ACTIVATED: Final = Upsert(Activations, prefix="activated", owns=("experiment", "manifest", "checksum", "duration_s"))
"""Upsert of the columns owned by `weights.activated`."""
OVERDUE: Final = Upsert(OverdueWindows, prefix="overdue", owns=("wanted", "version", "waited_s", "reason"))
"""Upsert of the columns owned by `weights.overdue`."""
COMMITTED: Final = Upsert(
    Checkpoints,
    prefix="committed",
    owns=("stage", "stage_step", "path", "files", "size_bytes", "checksum", "sha256", "final"),
    rule=Rule.LAST,
)
"""Upsert of the columns owned by `checkpoint.committed`."""
DELETED: Final = Upsert(Checkpoints, prefix="deleted", owns=("deleted_reason",), rule=Rule.LAST)
"""Upsert of the columns owned by `checkpoint.deleted`."""


def _put_published(event: weights.WeightsPublished, decoded: Decoded, changes: Changes) -> None:
    """Sets the row of a published weight version."""
    changes.put(
        PUBLISHED,
        decoded,
        experiment=owner_of(decoded),
        version=event.version,
        generation=event.generation,
        stage=event.stage,
        method=event.method,
        path=event.path,
        manifest=event.manifest,
        checksum=event.step_checksum,
        size_bytes=event.size_bytes,
    )


def _put_retired(event: weights.WeightsRetired, decoded: Decoded, changes: Changes) -> None:
    """Marks a weight version as retired."""
    changes.put(
        RETIRED,
        decoded,
        experiment=owner_of(decoded),
        version=event.version,
        generation=event.generation,
        retired_reason=event.reason,
    )


def _put_activation(event: weights.WeightsActivated, decoded: Decoded, changes: Changes) -> None:
    """Adds the row of an explorer's activation."""
    changes.put(
        ACTIVATED,
        decoded,
        worker=event.worker.bytes,
        version=event.version,
        generation=event.generation,
        experiment=owner_of(decoded),
        manifest=event.manifest,
        checksum=event.checksum,
        duration_s=event.duration_s,
    )


def _put_overdue(event: weights.WeightsOverdue, decoded: Decoded, changes: Changes) -> None:
    """Adds the row of a window whose weights came too late."""
    changes.put(
        OVERDUE,
        decoded,
        experiment=owner_of(decoded),
        stage=event.stage,
        number=event.window,
        wanted=event.wanted,
        version=event.version,
        waited_s=event.waited_s,
        reason=event.reason,
    )


def _put_checkpoint(event: checkpoint.CheckpointCommitted, decoded: Decoded, changes: Changes) -> None:
    """Sets the row of a checkpoint."""
    changes.put(
        COMMITTED,
        decoded,
        experiment=owner_of(decoded),
        step=event.step,
        generation=event.generation,
        stage=event.stage,
        stage_step=event.stage_step,
        path=event.path,
        files=len(event.files),
        size_bytes=event.size_bytes,
        checksum=event.checksum,
        sha256=event.sha256,
        final=event.final,
    )


def _put_deleted(event: checkpoint.CheckpointDeleted, decoded: Decoded, changes: Changes) -> None:
    """Marks a checkpoint as deleted."""
    changes.put(
        DELETED,
        decoded,
        experiment=owner_of(decoded),
        step=event.step,
        generation=event.generation,
        deleted_reason=event.reason,
    )


PROJECTION: Final = Projection(
    name="weights",
    version=2,
    tables=(WeightVersions, Activations, OverdueWindows, Checkpoints),
    handlers={
        weights.WeightsPublished: _put_published,
        weights.WeightsRetired: _put_retired,
        weights.WeightsActivated: _put_activation,
        weights.WeightsOverdue: _put_overdue,
        checkpoint.CheckpointCommitted: _put_checkpoint,
        checkpoint.CheckpointDeleted: _put_deleted,
    },
)
"""Projection of weight versions, activations, overdue windows and checkpoints."""
