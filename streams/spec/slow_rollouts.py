"""Sections of `explorer` on slow rollouts: `over_rollout`, `dynamic_timeout` and `straggler_reissue`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from rftd.streams.spec.declaration import InUnit, Natural


class OverRollout(msgspec.Struct, frozen=True, kw_only=True):
    """`explorer.over_rollout`: continue before the slowest tasks are done."""

    ratio: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Share of an explore step's tasks not waited for; 0: wait for all."""
    wait_after_min: Annotated[float, Meta(ge=0), InUnit("s")] = 30.0
    """Minimum wait for them once the other tasks are done."""
    return_partial_tasks: bool = False
    """Train on the finished rollouts of abandoned tasks."""


class DynamicTimeout(msgspec.Struct, frozen=True, kw_only=True):
    """`explorer.dynamic_timeout`: a time-out following recent durations."""

    enable: bool = False
    """true: end attempts after `ratio` recent mean durations, if `max_timeout` is longer."""
    warmup_min_steps: Annotated[Natural, InUnit("steps")] = 1
    """Explore steps before it takes effect."""
    ratio: Annotated[float, Meta(gt=0)] = 3.0
    """Maximum length of an attempt in recent mean durations, never above `max_timeout`."""


class StragglerReissue(msgspec.Struct, frozen=True, kw_only=True):
    """`explorer.straggler_reissue`: a slow rollout is also leased to an idle explorer. rftd only."""

    enable: bool = False
    """true: lease a slow rollout to a second explorer; the first one to end counts."""
    ratio: Annotated[float, Meta(ge=1)] = 3.0
    """A lease is slow after this many recent mean durations."""
