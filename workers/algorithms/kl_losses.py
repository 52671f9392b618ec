"""KL losses: the distance of the policy to a reference, estimated at each token.

d = logprob - reference logprob.  k1: d.  k2: d²/2.  k3: e^-d - 1 + d.  low_var_kl: k3 clamped.  abs: |d|.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rftd.ops.errors import ConfigError
from rftd.workers.algorithms.policy_losses.policy_loss import LOG_RATIO_LIMIT
from rftd.workers.plugins import Plugins

if TYPE_CHECKING:
    from torch import Tensor

LOW_VAR_LIMIT = 10.0


@dataclass(frozen=True, slots=True)
class KlLoss:
    """`coef` times the aggregate of `estimate(d)`; no reference is needed if `coef` is zero."""

    coef: float
    estimate: Callable[[Tensor], Tensor]  # [N] -> [N]


def none(**_ignored: object) -> KlLoss:
    """No KL term, whatever its arguments."""
    return KlLoss(0.0, lambda difference: difference.new_zeros(difference.shape))


def k1(*, kl_coef: float = 0.001, adaptive: bool = False) -> KlLoss:
    """Unbiased, of high variance; its gradient does not pull to the reference."""
    return _made(kl_coef, adaptive, lambda difference: difference)


def k2(*, kl_coef: float = 0.001, adaptive: bool = False) -> KlLoss:
    """Half the square: biased, but its gradient is that of the KL."""
    return _made(kl_coef, adaptive, lambda difference: 0.5 * difference.square())


def k3(*, kl_coef: float = 0.001, adaptive: bool = False) -> KlLoss:
    """Unbiased and never negative."""
    return _made(kl_coef, adaptive, _k3)


def low_var_kl(*, kl_coef: float = 0.001, adaptive: bool = False) -> KlLoss:
    """k3, with the difference clamped to ±20 and the result to ±10."""
    return _made(
        kl_coef,
        adaptive,
        lambda difference: _k3(difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)).clamp(
            -LOW_VAR_LIMIT, LOW_VAR_LIMIT
        ),
    )


def absolute(*, kl_coef: float = 0.001, adaptive: bool = False) -> KlLoss:
    """The absolute difference."""
    return _made(kl_coef, adaptive, lambda difference: difference.abs())


def _k3(difference: Tensor) -> Tensor:
    return (-difference).exp() - 1 + difference


def _made(kl_coef: float, adaptive: bool, estimate: Callable[[Tensor], Tensor]) -> KlLoss:
    if adaptive:
        raise ConfigError(
            "the adaptive KL coefficient is not supported: it would be state beside the optimizer",
            field="kl_loss_fn_args.adaptive",
            fix="leave it out and set kl_coef",
        )
    if kl_coef < 0:
        raise ConfigError(f"kl_coef is {kl_coef}", field="kl_loss_fn_args.kl_coef", fix="use 0 or more")
    return KlLoss(float(kl_coef), estimate)


KL_LOSSES: Final = Plugins[KlLoss](
    "KL loss",
    group="rftd.kl_losses",
    table={
        "none": f"{__name__}:none",
        "k1": f"{__name__}:k1",
        "k2": f"{__name__}:k2",
        "k3": f"{__name__}:k3",
        "low_var_kl": f"{__name__}:low_var_kl",
        "abs": f"{__name__}:absolute",
    },
)
