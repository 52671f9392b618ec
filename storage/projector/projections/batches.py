"""Batches and their items, from the spine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rftd.storage.database.tables.batches import Batches, BatchItems
from rftd.storage.projector.projections.projection import Projection, id_of
from rftd.storage.projector.upserts import Changes, Upsert
from rftd.streams.events import batch
from rftd.streams.log.envelope import Decoded

PLANNED: Final = Upsert(
    Batches,
    prefix="planned",
    owns=(
        "experiment",
        "step",
        "stage",
        "items",
        "groups",
        "incomplete",
        "staleness_mean",
        "staleness_p95",
        "staleness_max",
        "decided_at_ns",
        "max_uses",
        "eligible_at_ns",
    ),
)
"""Upsert of the columns owned by `batch.planned`."""
ITEM: Final = Upsert(
    BatchItems,
    prefix="planned",
    owns=(
        "experience",
        "group_id",
        "partition",
        "offset",
        "staleness_versions",
        "use",
        "digest",
        "row",
        "epoch",
    ),
)
"""Upsert of the columns of a batch's items."""
ABANDONED: Final = Upsert(Batches, prefix="abandoned", owns=("abandoned_code", "abandoned_reason"))
"""Upsert of the columns owned by `batch.abandoned`."""


def percentile_95(ordered: Sequence[int]) -> int:
    """Returns the smallest of the sorted values not exceeded by at least 95 % of all."""
    return ordered[-(-95 * len(ordered) // 100) - 1]


def _put_plan(event: batch.BatchPlanned, decoded: Decoded, changes: Changes) -> None:
    """Adds the rows of a planned batch and its items."""
    id = event.batch.bytes
    planned_items = event.experiences
    rows = event.rows
    stale = sorted(planned.staleness_versions for planned in planned_items)
    changes.put(
        PLANNED,
        decoded,
        id=id,
        experiment=id_of(decoded.head.experiment),
        step=event.step,
        stage=event.stage,
        items=len(planned_items) + len(rows),
        groups=len(event.groups),
        incomplete=event.incomplete,
        staleness_mean=sum(stale) / len(stale) if stale else None,
        staleness_p95=percentile_95(stale) if stale else None,
        staleness_max=stale[-1] if stale else None,
        decided_at_ns=event.decided_at_ns,
        max_uses=event.max_uses,
        eligible_at_ns=event.eligible_at_ns,
    )
    # The hot part: rows as tuples in the order of `ITEM.columns`, because a batch has thousands of items.
    groups = [reference.group.bytes for reference in event.groups]
    stamp = ITEM.stamp(decoded)
    no_row = (None, None, None, *stamp)
    changes.of(ITEM).extend(
        [
            (
                id,
                number,
                planned.experience.bytes,
                groups[planned.group] if 0 <= planned.group < len(groups) else None,
                planned.partition,
                planned.offset,
                planned.staleness_versions,
                planned.use,
                *no_row,
            )
            for number, planned in enumerate(planned_items)
        ]
    )
    changes.of(ITEM).extend(
        [
            (id, number, None, None, None, None, None, None, event.dataset_of(row), row.row, row.epoch, *stamp)
            for number, row in enumerate(rows, start=len(planned_items))
        ]
    )


def _put_abandoned(event: batch.BatchAbandoned, decoded: Decoded, changes: Changes) -> None:
    """Marks a batch as abandoned."""
    changes.put(ABANDONED, decoded, id=event.batch.bytes, abandoned_code=event.code, abandoned_reason=event.reason)


PROJECTION: Final = Projection(
    name="batches",
    version=2,
    tables=(Batches, BatchItems),
    handlers={batch.BatchPlanned: _put_plan, batch.BatchAbandoned: _put_abandoned},
)
"""Projection of plans and their items into the tables of batches."""
