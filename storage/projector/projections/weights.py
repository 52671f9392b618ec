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
RETIRED: Final = Upsert(WeightVersions, prefix="retired", owns=("retired_reason",), rule=Rule.LAST)
ACTIVATED: Final = Upsert(Activations, prefix="activated", owns=("experiment", "manifest", "checksum", "duration_s"))
OVERDUE: Final = Upsert(OverdueWindows, prefix="overdue", owns=("wanted", "version", "waited_s", "reason"))
COMMITTED: Final = Upsert(
    Checkpoints,
    prefix="committed",
    owns=("stage", "stage_step", "path", "files", "size_bytes", "checksum", "sha256", "final"),
    rule=Rule.LAST,
)
DELETED: Final = Upsert(Checkpoints, prefix="deleted", owns=("deleted_reason",), rule=Rule.LAST)


def _published(event: weights.WeightsPublished, decoded: Decoded, changes: Changes) -> None:
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


def _retired(event: weights.WeightsRetired, decoded: Decoded, changes: Changes) -> None:
    changes.put(
        RETIRED,
        decoded,
        experiment=owner_of(decoded),
        version=event.version,
        generation=event.generation,
        retired_reason=event.reason,
    )


def _activated(event: weights.WeightsActivated, decoded: Decoded, changes: Changes) -> None:
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


def _overdue(event: weights.WeightsOverdue, decoded: Decoded, changes: Changes) -> None:
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


def _committed(event: checkpoint.CheckpointCommitted, decoded: Decoded, changes: Changes) -> None:
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


def _deleted(event: checkpoint.CheckpointDeleted, decoded: Decoded, changes: Changes) -> None:
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
        weights.WeightsPublished: _published,
        weights.WeightsRetired: _retired,
        weights.WeightsActivated: _activated,
        weights.WeightsOverdue: _overdue,
        checkpoint.CheckpointCommitted: _committed,
        checkpoint.CheckpointDeleted: _deleted,
    },
)
