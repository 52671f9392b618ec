"""`SyncFailure`: reasons for failed weight transfers, the one list for heartbeats and metrics."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class SyncFailure(StrEnum):
    """Reason of a failed weight transfer, as reported in heartbeats and metrics."""

    LOAD = "load"
    """An explorer could not load published weights; it will try again."""
    FELL_BACK = "fell_back"
    """The stage's channel could not carry the weights, and the channel `checkpoint` carried them instead."""
    LOST = "lost"
    """Published weights have disappeared."""


OTHER: Final = "other"
"""Label of a reason unknown to this release, reported by a newer worker."""
_REASONS: Final = frozenset(reason.value for reason in SyncFailure)
"""Reasons known to this release; any other reason is counted as `OTHER`."""


def label_of_failure(reason: str) -> str:
    """Returns a reason from a heartbeat as a metrics label: a known one, or `other`."""
    return reason if reason in _REASONS else OTHER
