"""Entropy losses: a bonus for undecided tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rftd.workers.plugins import Plugins


@dataclass(frozen=True, slots=True)
class EntropyLoss:
    """`coef` times the aggregate of the entropies is subtracted from the loss."""

    coef: float


def none(**_ignored: object) -> EntropyLoss:
    """No entropy term, whatever its arguments."""
    return EntropyLoss(0.0)


def default(*, entropy_coef: float = 0.0) -> EntropyLoss:
    """Every trained token counts."""
    return EntropyLoss(float(entropy_coef))


ENTROPY_LOSSES: Final = Plugins[EntropyLoss](
    "entropy loss",
    group="rftd.entropy_losses",
    table={"none": f"{__name__}:none", "default": f"{__name__}:default"},
)
