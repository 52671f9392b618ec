"""Entropy losses: a bonus for undecided tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rftd.ops.errors import ConfigError
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
    return EntropyLoss(_bonus(entropy_coef))


def mix(*, entropy_coef: float = 0.0) -> EntropyLoss:
    """The term is -entropy_coef · H, of the trained tokens that the policy drew: an expert's rows do not count."""
    return EntropyLoss(_bonus(entropy_coef), without_expert=True)


def _bonus(entropy_coef: float) -> float:
    """The coefficient. Raises ConfigError below 0, where undecided tokens would be trained away."""
    if not entropy_coef >= 0:
        raise ConfigError(
            f"entropy_coef is {entropy_coef}", field="entropy_loss_fn_args.entropy_coef", fix="use 0 or more"
        )
    return float(entropy_coef)


ENTROPY_LOSSES: Final = Plugins[EntropyLoss](
    "entropy loss",
    group="rftd.entropy_losses",
    table={"none": f"{__name__}:none", "default": f"{__name__}:default", "mix": f"{__name__}:mix"},
)
