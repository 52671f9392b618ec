"""Named parts of rewards as figures: `reward/NAME/mean` of a training batch, or of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

LIMIT: Final = 32
"""The most parts that are reported; of more, the first ones by name."""
_NAME_CHARS: Final = 64


def part_sums(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sum of each named part over some rows, in their order; a row without a part counts 0.

    Left out are parts whose sum is not finite, whose name is too long to be a figure's, and those beyond `LIMIT`.
    """
    sums: dict[str, float] = {}
    for parts in rows:
        for name, value in parts.items():
            sums[name] = sums.get(name, 0.0) + value
    names = [name for name in sorted(sums) if len(name) <= _NAME_CHARS and math.isfinite(sums[name])]
    return {name: sums[name] for name in names[:LIMIT]}


def part_means(sums: Mapping[str, float], rows: int) -> dict[str, float]:
    """The figures of sums over so many rows. The means of parts that add up to the reward add up to its mean."""
    return {mean_name(name): total / rows for name, total in sums.items()} if rows else {}


def mean_name(part: str) -> str:
    """The figure's name of a part."""
    return f"reward/{part}/mean"


def part_of(figure: str) -> str | None:
    """The part whose mean a figure is; None of another figure."""
    inner = figure.removeprefix("reward/").removesuffix("/mean")
    return inner if inner and figure == mean_name(inner) else None
