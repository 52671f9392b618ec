"""Marks of a course: publications, checkpoints, transitions, resumptions and lost workers, thinned by kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec
import numpy as np
from numpy.typing import NDArray

from rftd.storage.queries.rows import fetch

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

MARK_BUCKETS: Final = 50
"""Maximum number of marks of a kind in an answer: of neighbours the newest remains, with their count."""
_NEWEST_MARKS: Final = 1000
"""Maximum number of transitions and lost workers read for one experiment."""


class CourseMark(msgspec.Struct, frozen=True, kw_only=True):
    """A moment in an experiment's life, at a weight version or at a time."""

    change: str
    """`published`, `checkpoint`, `resumed_from`, `worker_lost`, `signal_lost`, `signal_regained`, or a state."""
    step: int | None
    """The weight version; null for a moment known by its time only."""
    time_ns: int
    """Time of the moment, Unix time in nanoseconds."""
    text: str
    """Details in words; empty for a publication."""
    count: int = 1
    """Number of neighbouring marks of the kind, this one included."""


async def marks_of(connection: AsyncConnection, experiment: UUID, published: NDArray[np.int64]) -> list[CourseMark]:
    """Returns the marks of an experiment in order of time; publications and checkpoints in at most 50 each."""
    key = experiment.bytes
    saved = await fetch(
        connection,
        CourseMark,
        """SELECT 'checkpoint' AS change, MAX(c.step) AS step, MAX(c.committed_ns) AS time_ns, '' AS text,
            COUNT(*) AS count
        FROM checkpoints c WHERE c.experiment = :experiment AND c.committed_offset IS NOT NULL
        GROUP BY c.step / (1 + (SELECT MAX(n.step) FROM checkpoints n WHERE n.experiment = :experiment) / :buckets)""",
        experiment=key,
        buckets=MARK_BUCKETS,
    )
    resumed = await fetch(
        connection,
        CourseMark,
        """SELECT 'resumed_from' AS change, g.version AS step, g.started_ns AS time_ns, COALESCE(g.reason, '') AS text
        FROM generations g WHERE g.experiment = :experiment AND g.generation > 0 ORDER BY g.generation LIMIT :most""",
        experiment=key,
        most=_NEWEST_MARKS,
    )
    moved = await fetch(
        connection,
        CourseMark,
        """SELECT t.change, t.step, t.moved_ns AS time_ns,
            CASE WHEN t.code <> '' AND t.reason <> '' THEN t.code || ': ' || t.reason
                ELSE COALESCE(t.code, '') || COALESCE(t.reason, '') END AS text
        FROM transitions t WHERE t.experiment = :experiment AND t.change <> 'queued' ORDER BY t.number LIMIT :most""",
        experiment=key,
        most=_NEWEST_MARKS,
    )
    lost = await fetch(
        connection,
        CourseMark,
        """SELECT 'worker_lost' AS change, NULL AS step, w.lost_ns AS time_ns,
            w.role || ' lost: ' || COALESCE(w.lost_reason, '') AS text
        FROM workers w WHERE w.experiment = :experiment AND w.lost_ns IS NOT NULL AND w.stopped_ns IS NULL
            AND w.role IS NOT NULL ORDER BY w.lost_ns LIMIT :most""",
        experiment=key,
        most=_NEWEST_MARKS,
    )
    return sorted((*_publications(published), *saved, *resumed, *moved, *lost), key=lambda mark: mark.time_ns)


def _publications(published: NDArray[np.int64]) -> list[CourseMark]:
    """Returns the newest of each bucket of published versions."""
    versions = published[0]
    if not len(versions):
        return []
    bucket = versions // (1 + versions[-1] // MARK_BUCKETS)
    ends = np.append(np.flatnonzero(np.diff(bucket)), len(versions) - 1)
    counts = np.diff(ends, prepend=-1)
    return [
        CourseMark(change="published", step=step, time_ns=time_ns, text="", count=count)
        for step, time_ns, count in zip(*published[:, ends].tolist(), counts.tolist(), strict=True)
    ]


def merged(marks: Sequence[CourseMark], bucket_of: Sequence[int]) -> list[tuple[int, CourseMark]]:
    """Returns one mark for each kind and bucket, with its position in `marks`: the last, with the sum of counts."""
    newest: dict[tuple[str, int], tuple[int, CourseMark]] = {}
    for number, (mark, bucket) in enumerate(zip(marks, bucket_of, strict=True)):
        _, earlier = newest.pop((mark.change, bucket), (0, None))
        count = mark.count + (earlier.count if earlier is not None else 0)
        newest[mark.change, bucket] = number, msgspec.structs.replace(mark, count=count)
    return list(newest.values())
