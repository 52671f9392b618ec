"""Named parts of rewards as figures: `reward/NAME/mean` of a training batch, or of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

LIMIT: Final = 32
"""Maximum number of reported parts; of more, the first ones by name."""
_NAME_CHARS: Final = 64
"""Maximum number of characters in the name of a part."""


def part_sums(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sums each named part over the rows, in their order; a row without a part counts 0.

    Left out are parts with a sum not finite, with a name too long for a figure's, and those beyond `LIMIT`.
    """
    sums: dict[str, float] = {}
    for parts in rows:
        for name, part_reward in parts.items():
            sums[name] = sums.get(name, 0.0) + part_reward
    names = [name for name in sorted(sums) if len(name) <= _NAME_CHARS and math.isfinite(sums[name])]
    return {name: sums[name] for name in names[:LIMIT]}


def part_means(sums: Mapping[str, float], rows: int) -> dict[str, float]:
    """Converts sums over `rows` rows to figures. The means of parts adding up to the reward add up to its mean."""
    return {mean_name(name): total / rows for name, total in sums.items()} if rows else {}


def mean_name(part: str) -> str:
    """Returns the name of a part's figure."""
    return f"reward/{part}/mean"


def part_of(figure: str) -> str | None:
    """Returns the part with this figure as its mean; None for another figure."""
    inner = figure.removeprefix("reward/").removesuffix("/mean")
    return inner if inner and figure == mean_name(inner) else None
