"""Priority functions say who is trained first, from an experience and its uses (the guide, "replay_buffer").

Third parties add one through the entry-point group `rftd.priorities`: a factory that takes the arguments of the
experiment file and returns a function of `BufferEntry`. It must depend on that alone: it is asked again on recovery.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from rftd.ops.ids import derive
from rftd.ops.plugins import Plugins
from rftd.streams.spec.spec import PrioritySpec
from rftd.workers.control.policies.buffer_index import Priority

if TYPE_CHECKING:
    from rftd.streams.folds.replay_buffer import BufferEntry

PRIORITIES: Final = Plugins[Priority](
    "priority function",
    group="rftd.priorities",
    table={
        "tag": "rftd.workers.control.policies.priorities:tag",
        "linear_decay": "rftd.workers.control.policies.priorities:linear_decay",
        "decay_limit_randomization": "rftd.workers.control.policies.priorities:decay_limit_randomization",
    },
)


NotNegative = Annotated[float, msgspec.Meta(ge=0)]


def make_priority(spec: PrioritySpec) -> Priority:
    """The function that a stage names. Raises ConfigError for an unknown one, or arguments that do not fit."""
    return PRIORITIES.open(spec.kind, spec.args)


def tag() -> Priority:
    """The tag alone: set by a workflow, 0 if by none, or changed since."""
    return _tag


def linear_decay(decay: NotNegative = 2.0) -> Priority:
    """Weight version - decay * uses, above which the tag comes first."""
    return decay_limit_randomization(decay=decay, use_count_limit=0)


def decay_limit_randomization(
    decay: NotNegative = 2.0, use_count_limit: Annotated[int, msgspec.Meta(ge=0)] = 3, sigma: NotNegative = 0.0
) -> Priority:
    """`linear_decay` with a normal deviate of width sigma for each use. The limit is the policy's `max_uses`."""

    def priority(entry: BufferEntry) -> float:
        noise = sigma * _deviate(entry) if sigma else 0.0
        return entry.priority + entry.member.newest_version - decay * entry.uses + noise

    return priority


def _tag(entry: BufferEntry) -> float:
    return entry.priority


def _deviate(entry: BufferEntry) -> float:
    """N(0, 1), the same whenever it is asked: it follows from the experience and its uses."""
    # Of an id's last 64 bits the first two are always the same.
    fraction = (derive(entry.member.experience, "priority", entry.uses).int % 2**62 + 0.5) / 2**62
    # Half a unit above 0 and below 1: inv_cdf raises at either end.
    return NormalDist().inv_cdf(fraction)
