"""The bounds of numbers in events and specifications, as annotated types.

A record with a number out of bounds is foreign, and is skipped before any fold. The bounds are wide enough for every
number written by a release, and narrow enough for sums to fit a column of the tables and for clock readings, lengths
and counts to be plausible. Relations between fields are checked at the event's declaration.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

ROLLOUTS: Final = 100_000
"""Maximum number of rollouts in a group."""
LAST_NS: Final = (1 << 63) - 1
"""Maximum reading of a clock, in nanoseconds."""
HOTTEST: Final = 100.0
"""Maximum temperature."""
# The largest finite double. Infinities lie beyond it, and NaN fails every comparison; without a bound msgpack accepts
# both, and a sum never recovers from either.
_LARGEST: Final = 1.7976931348623157e308
"""Largest finite number of 64 bits."""

LAST_INDEX: Final = 1 << 40
"""Maximum index."""
Index: TypeAlias = Annotated[int, Meta(ge=-1, le=LAST_INDEX)]
"""A version, step, generation, stage, sequence, row or slot; -1 for none."""
Number: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 40)]
"""An index that is never absent."""
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 40)]
"""A non-negative count."""
Rollouts: TypeAlias = Annotated[int, Meta(ge=0, le=ROLLOUTS)]
"""A number of rollouts of a group, or the number of one rollout."""
Offset: TypeAlias = Annotated[int, Meta(ge=-1, le=1 << 62)]
"""The offset of a record in its partition; -1 for unknown."""
# 2**53: exact as a double too, the only number type of JSON.
Bytes: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
"""A size in bytes."""
Epoch: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
"""The epoch of a role."""
Nanoseconds: TypeAlias = Annotated[int, Meta(ge=0, le=LAST_NS)]
"""A reading of the wall clock, in nanoseconds."""
# Twice as wide as an index: the difference of any two valid versions fits.
Difference: TypeAlias = Annotated[int, Meta(ge=-(1 << 41), le=1 << 41)]
"""The difference of two versions."""
Integer: TypeAlias = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A whole number within the range of a table's integer column."""
Finite: TypeAlias = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
"""A number neither infinite nor NaN."""
RoleName: TypeAlias = Annotated[str, Meta(max_length=32, pattern=r"^[A-Za-z0-9_-]*$")]
"""The name of an agent in a rollout of several agents; empty for a rollout of a single one."""
Temperature: TypeAlias = Annotated[float, Meta(ge=0.0, le=HOTTEST)]
"""The divisor of logits before a token is drawn; 0 for greedy decoding."""
Seconds: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e9)]
"""A measured duration in seconds."""
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 62)]
"""A sum of measured durations, in milliseconds."""
