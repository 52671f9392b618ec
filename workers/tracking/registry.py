"""Every kind of tracker by name; importing this imports none of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rftd.ops.plugins import Plugins

_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {}
"""The variables of the environment that a tracker reads by itself, if they are there."""

if TYPE_CHECKING:
    from rftd.workers.tracking.tracker import Tracker

TRACKERS: Final[Plugins[Tracker]] = Plugins(
    "tracker",
    group="rftd.trackers",
    table={
        "jsonl": "rftd.workers.tracking.jsonl:JsonLines",
        "console": "rftd.workers.tracking.console:Console",
        "tensorboard": "rftd.workers.tracking.tensorboard:TensorBoard",
    },
)


def variables_of(kind: str) -> tuple[str, ...]:
    """The variables that a tracker of this kind reads beside those that its arguments name: its keys among them."""
    return _VARIABLES.get(kind, ())
