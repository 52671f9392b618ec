"""Priority functions: the order in which waiting experiences are trained (`replay_buffer` in the experiment file).

Third parties add one through the entry-point group `rftd.priorities`: a factory with the arguments of the experiment
file, returning a function of `BufferEntry`. The function must depend on that entry alone, because it is called again on
recovery.
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
"""Priority functions by name: built-in ones, and plug-ins of the entry-point group `rftd.priorities`."""


NotNegative = Annotated[float, msgspec.Meta(ge=0)]
"""Type of an argument that may not be negative."""


def make_priority(spec: PrioritySpec) -> Priority:
    """Returns the priority function named by a stage. Raises ConfigError for an unknown name or invalid arguments."""
    return PRIORITIES.open(spec.kind, spec.args)


def tag() -> Priority:
    """Returns the default function: an experience's tag, set by a workflow or by `rftd experiences prioritize`; 0 by
    default.
    """
    return _tag_of


def linear_decay(decay: NotNegative = 2.0) -> Priority:
    """Returns the function weight version - decay * uses + tag."""
    return decay_limit_randomization(decay=decay, use_count_limit=0)


def decay_limit_randomization(
    decay: NotNegative = 2.0, use_count_limit: Annotated[int, msgspec.Meta(ge=0)] = 3, sigma: NotNegative = 0.0
) -> Priority:
    """Returns `linear_decay` plus a reproducible normal deviate of width sigma; `use_count_limit` becomes the policy's
    `max_uses`.
    """

    def priority(experience: BufferEntry) -> float:
        noise = sigma * _deviate(experience) if sigma else 0.0
        return experience.priority + experience.member.newest_version - decay * experience.uses + noise

    return priority


def _tag_of(experience: BufferEntry) -> float:
    """Returns the priority tag of an experience."""
    return experience.priority


def _deviate(experience: BufferEntry) -> float:
    """Returns a deviate of N(0, 1), derived from the experience and its uses, so equal on every call."""
    # Of an id's last 64 bits the first two are always the same.
    fraction = (derive(experience.member.experience, "priority", experience.uses).int % 2**62 + 0.5) / 2**62
    # Half a unit above 0 and below 1: inv_cdf raises at either end.
    return NormalDist().inv_cdf(fraction)
