"""Entropy losses: a bonus for undecided tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rftd.ops.plugins import Plugins


@dataclass(frozen=True, slots=True)
class EntropyLoss:
    """`coef` times the aggregate of the entropies is subtracted from the loss."""

    coef: float
    without_expert: bool = False
    """True: the tokens of an expert's rows have no entropy term."""


def none(**_ignored: object) -> EntropyLoss:
    """The loss has no entropy term, whatever its arguments."""
    return EntropyLoss(0.0)


def default(*, entropy_coef: float = 0.0) -> EntropyLoss:
    """The term is -entropy_coef · H, of every trained token."""
    return EntropyLoss(float(entropy_coef))


def mix(*, entropy_coef: float = 0.0) -> EntropyLoss:
    """The term is -entropy_coef · H, of the trained tokens that the policy drew: an expert's rows do not count."""
    return EntropyLoss(float(entropy_coef), without_expert=True)


ENTROPY_LOSSES: Final = Plugins[EntropyLoss](
    "entropy loss",
    group="rftd.entropy_losses",
    table={"none": f"{__name__}:none", "default": f"{__name__}:default", "mix": f"{__name__}:mix"},
)
