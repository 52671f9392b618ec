"""`Counted`: the fields of an experience that the metrics count, decoded without the bytes of its arrays."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.bounds import Count, Finite, Index, Seconds
from rftd.streams.events.registry import Event


class Shape(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The shape of an array, without its bytes."""

    dtype: str
    shape: tuple[Count, ...]

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0


class Counted(Event, frozen=True, kw_only=True, gc=False):
    """The fields of `experience.produced` that are counted, under the same names."""

    experience: UUID
    lease: UUID = UUID(int=0)
    stage: Index
    tokens: Shape
    prompt_tokens: Count
    reward: Finite
    finish: str = "stop"
    duration_s: Seconds = 0.0
    turns: Count = 0
