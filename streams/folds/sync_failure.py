"""`SyncFailure`: the ways in which a weight sync fails: the one list that heartbeats and metrics use."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class SyncFailure(StrEnum):
    """The reason of a failure, as heartbeats and metrics have it."""

    LOAD = "load"
    """An explorer could not load weights that were announced; it tries again."""
    FELL_BACK = "fell_back"
    """The channel of the stage could not take them: they went through `checkpoint` instead."""
    LOST = "lost"
    """Weights that explorers were told of are gone."""


OTHER: Final = "other"
"""The label of a reason that no worker of this release gives, at a daemon that is older than its workers."""
_SAID: Final = frozenset(reason.value for reason in SyncFailure)


def label_of_failure(said: str) -> str:
    """The reason of a heartbeat as a label of metrics: one of the list, or `other`."""
    return said if said in _SAID else OTHER
