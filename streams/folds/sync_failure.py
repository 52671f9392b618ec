"""`SyncFailure`: the failures of a weight sync: the one list for heartbeats and metrics."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class SyncFailure(StrEnum):
    """The reason of a failure, as reported by heartbeats and metrics."""

    LOAD = "load"
    """An explorer could not load announced weights; it tries again."""
    FELL_BACK = "fell_back"
    """The stage's channel could not carry the weights: they were sent through `checkpoint` instead."""
    LOST = "lost"
    """Weights announced to explorers are gone."""


OTHER: Final = "other"
"""The label of an unknown reason, at a daemon older than its workers."""
_REASONS: Final = frozenset(reason.value for reason in SyncFailure)


def label_of_failure(reason: str) -> str:
    """Returns a heartbeat's reason as a label of metrics: one of the list, or `other`."""
    return reason if reason in _REASONS else OTHER
