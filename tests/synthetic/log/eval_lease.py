"""A lease of held-out rows, as the dispatcher writes it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rftd.ops.ids import derive
from rftd.streams.events.task import EvalLeased


def eval_lease(
    eval: UUID, worker: UUID, version: int, *, row_start: int = 0, attempt: int = 1, **more: Any
) -> EvalLeased:
    """Four rows of stage 1 from `row_start` on, to be answered with one version."""
    fields: dict[str, Any] = {
        "lease": derive(eval, row_start, attempt),
        "slot": 0,
        "worker": worker,
        "eval": eval,
        "stage": 1,
        "taskset": 0,
        "row_start": row_start,
        "row_end": row_start + 4,
        "version": version,
        "generation": 0,
        "attempt": attempt,
        "deadline_s": 60.0,
    }
    return EvalLeased(**fields | more)
