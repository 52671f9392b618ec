"""Experiences and failed rollouts, from `rftd.experiences`; retirements, from the spine."""

from __future__ import annotations

from typing import Final

from rftd.storage.database.tables.experiences import Counts, Experiences, Retirements, StageCounts
from rftd.storage.projector.projections.projection import Projection, id_of, json_of
from rftd.storage.projector.upserts import Changes, Upsert
from rftd.streams.events import batch, experience
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.writers import explorer_of

PRODUCED: Final = Upsert(
    Experiences,
    prefix="produced",
    owns=(
        "id",
        "experiment",
        "stage",
        "lease",
        "prompt_tokens",
        "response_tokens",
        "oldest_version",
        "newest_version",
        "spans",
        "reward",
        "priority",
        "metrics",
        "finish",
        "duration_s",
    ),
)
"""Upsert of the columns owned by `experience.produced`."""
FAILED: Final = Upsert(
    Experiences,
    prefix="failed",
    owns=("failed_lease", "failed_experiment", "failed_stage", "failed_code", "failed_reason"),
)
"""Upsert of the columns owned by `rollout.failed`."""
RETIRED: Final = Upsert(Retirements, prefix="retired", owns=("experiment", "reason", "uses", "decided_at_ns"))
"""Upsert of the columns owned by `experience.retired`."""


def _put_produced(event: experience.ExperienceProduced, decoded: Decoded, changes: Changes) -> None:
    """Adds the row of an experience; a writer that is no explorer adds none."""
    writer = explorer_of(decoded.head.source)
    if writer is None:
        return
    versions = [span.version for span in event.spans] or (0,)
    # A tuple in the order of `PRODUCED.columns`: most records of the log are this event.
    changes.of(PRODUCED).append(
        (
            event.group.bytes,
            event.rollout,
            writer,
            event.experience.bytes,
            id_of(decoded.head.experiment),
            event.stage,
            event.lease.bytes,
            event.prompt_tokens,
            len(event.tokens) - event.prompt_tokens,
            min(versions),
            max(versions),
            json_of(event.spans),
            event.reward,
            event.priority,
            json_of(event.metrics) if event.metrics else None,
            event.finish,
            event.duration_s,
            *PRODUCED.stamp(decoded),
        )
    )


def _put_failed(event: experience.RolloutFailed, decoded: Decoded, changes: Changes) -> None:
    """Adds the row of a failed rollout; a writer that is no explorer adds none."""
    writer = explorer_of(decoded.head.source)
    if writer is None:
        return
    changes.put(
        FAILED,
        decoded,
        group_id=event.group.bytes,
        rollout=event.rollout,
        writer=writer,
        failed_lease=event.lease.bytes,
        failed_experiment=id_of(decoded.head.experiment),
        failed_stage=event.stage,
        failed_code=event.code,
        failed_reason=event.reason,
    )


def _put_retired(event: batch.ExperienceRetired, decoded: Decoded, changes: Changes) -> None:
    """Adds a row for each retired experience."""
    shared_columns = (
        id_of(decoded.head.experiment),
        event.reason,
        event.uses,
        event.decided_at_ns,
        *RETIRED.stamp(decoded),
    )
    changes.of(RETIRED).extend([(experience_id.bytes, *shared_columns) for experience_id in event.experiences])


PROJECTION: Final = Projection(
    name="experiences",
    version=5,
    tables=(Experiences, Retirements, Counts, StageCounts),
    handlers={
        experience.ExperienceProduced: _put_produced,
        experience.RolloutFailed: _put_failed,
        batch.ExperienceRetired: _put_retired,
    },
)
"""Projection of experiences, failed rollouts and retirements, with the counts derived from them."""
