"""`Operator`: one step of the experience pipeline, and `PipelineExperience`, the form of experiences for operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from rftd.streams.events.experience import ExperienceProduced


class PipelineExperience(msgspec.Struct, frozen=True, kw_only=True):
    """One experience of a finished group. Operators return changed copies (`msgspec.structs.replace`)."""

    rollout: int
    """Number of the rollout in its group, from 0; the experience's identity, never to be changed."""
    reward: float
    """Reward for advantages; not finite only between operators."""
    masked: bool = False
    """True if none of its tokens is to be trained; the experience still counts in its group's advantages."""
    metrics: Mapping[str, float] = {}
    """Named figures of the rollout, among them the parts of its reward."""
    finish: str = "stop"
    """`stop`, `length` or `prompt_truncated`."""
    response_tokens: int = 0
    """Length of the response in tokens."""
    produced: ExperienceProduced
    """The experience's record, with all token arrays."""


class Operator(Protocol):
    """One step of the experience pipeline: removes or changes experiences of one group."""

    def process(
        self, experiences: Sequence[PipelineExperience]
    ) -> tuple[Sequence[PipelineExperience], Mapping[str, float]]:
        """Returns the kept experiences of a group, with changed rewards or masks, and figures by name.

        An exception, an added experience or an unknown one fails the group: a dead letter, and the pipeline goes on.
        """
        ...
