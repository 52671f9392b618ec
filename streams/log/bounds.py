"""The bounds of numbers in events and specifications, as annotated types.

A record that says anything else is not ours, and is left out before it is folded.
Wide enough for whatever a release has written, narrow enough that sums fit a column of the tables and no clock
reading, length or count is absurd. Relations between fields are checked where the event is declared.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

ROLLOUTS: Final = 100_000
"""Most rollouts of one group."""
LAST_NS: Final = (1 << 63) - 1
"""The last reading of a clock that there is."""
HOTTEST: Final = 100.0
"""The highest temperature."""
# The largest finite double. Infinities lie beyond it, and NaN fails every comparison; without a bound msgpack brings
# both, and one of them in a sum stays there.
_LARGEST: Final = 1.7976931348623157e308

LAST_INDEX: Final = 1 << 40
"""The highest index."""
Index: TypeAlias = Annotated[int, Meta(ge=-1, le=LAST_INDEX)]
"""A version, step, generation, stage, sequence, row or slot; -1 where there is none."""
Number: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 40)]
"""An index where there is always one."""
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 40)]
"""A number of things."""
Rollouts: TypeAlias = Annotated[int, Meta(ge=0, le=ROLLOUTS)]
"""Rollouts of a group, or the number of one."""
Offset: TypeAlias = Annotated[int, Meta(ge=-1, le=1 << 62)]
"""The offset of a record in its partition; -1 where none is known."""
# 2**53: exact as a double too, as JSON and its readers have numbers.
Bytes: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
"""A size in bytes."""
Epoch: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
"""The epoch of a role."""
Nanoseconds: TypeAlias = Annotated[int, Meta(ge=0, le=LAST_NS)]
"""A reading of the wall clock."""
# Twice as wide as an index: both versions may be anything that an index may be.
Difference: TypeAlias = Annotated[int, Meta(ge=-(1 << 41), le=1 << 41)]
"""The difference of two versions."""
Integer: TypeAlias = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A whole number that a column of the tables holds."""
Finite: TypeAlias = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
"""A number that is neither infinite nor NaN."""
Temperature: TypeAlias = Annotated[float, Meta(ge=0.0, le=HOTTEST)]
"""The divisor of logits before a token is drawn; 0 where the likeliest is taken."""
Seconds: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e9)]
"""A duration that was measured."""
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 62)]
"""A sum of measured durations."""
