"""Entropy losses: a bonus for tokens drawn from a broad distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rftd.ops.errors import ConfigError
from rftd.ops.plugins import Plugins


@dataclass(frozen=True, slots=True)
class EntropyLoss:
    """An entropy bonus: `coef` times the aggregated entropy is subtracted from the loss."""

    coef: float
    """Coefficient of the entropy."""
    without_expert: bool = False
    """True: tokens of an expert's rows have no entropy term."""


def none(**_ignored: object) -> EntropyLoss:
    """Disables the entropy term, whatever the arguments."""
    return EntropyLoss(0.0)


def default(*, entropy_coef: float = 0.0) -> EntropyLoss:
    """Adds the term -entropy_coef · H over every trained token."""
    return EntropyLoss(_bonus(entropy_coef))


def mix(*, entropy_coef: float = 0.0) -> EntropyLoss:
    """Adds the term -entropy_coef · H over the trained tokens drawn by the policy; tokens of an expert's rows do not
    count.
    """
    return EntropyLoss(_bonus(entropy_coef), without_expert=True)


def _bonus(entropy_coef: float) -> float:
    """Returns the coefficient. Raises ConfigError below 0, where the loss would lower the entropy."""
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
"""Entropy losses by name: built-in ones, and plug-ins."""
