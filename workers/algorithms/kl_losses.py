"""KL losses: the distance of the policy to a reference, estimated at each token.

Let d = logprob - reference logprob. Which one: k2 for a loss (its gradient is that of the KL), k1 or k3 for a figure
or a penalty, low_var_kl where the policy may drift far, corrected_k3 where tokens are of older weights.
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

LOW_VAR_LIMIT: Final = 10.0
CORRECTION_LIMIT: Final = 2.0

Estimate = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]
"""(logprobs, reference's logprobs, logprobs under the weights that drew the tokens) -> KL at each token  # [N] each"""


@dataclass(frozen=True, slots=True)
class KlLoss:
    """`coef` times the aggregate of `estimate` is added to the loss; no reference is needed if `coef` is zero."""

    coef: float
    estimate: Estimate
    needs_old_logprobs: bool = False


def none(**_ignored: object) -> KlLoss:
    """No KL term, whatever its arguments: 0."""
    return KlLoss(0.0, lambda logprobs, ref, old: logprobs.new_zeros(logprobs.shape))


def k1(*, kl_coef: float = 0.001, adaptive: bool = False) -> KlLoss:
    """d. Unbiased, of high variance; as a loss its gradient does not pull to the reference."""
    return _made(kl_coef, adaptive, lambda logprobs, ref, old: logprobs - ref)


def k2(*, kl_coef: float = 0.001, adaptive: bool = False) -> KlLoss:
    """d² / 2. Biased, but its gradient is that of the KL."""
    return _made(kl_coef, adaptive, lambda logprobs, ref, old: 0.5 * (logprobs - ref).square())


def k3(*, kl_coef: float = 0.001, adaptive: bool = False) -> KlLoss:
    """e^-d - 1 + d. Unbiased and never negative."""
    return _made(kl_coef, adaptive, lambda logprobs, ref, old: _k3(logprobs - ref))


def low_var_kl(*, kl_coef: float = 0.001, adaptive: bool = False) -> KlLoss:
    """k3, with d clamped to ±20 and the result to ±10: never so large that it rules a batch."""
    return _made(
        kl_coef,
        adaptive,
        lambda logprobs, ref, old: _k3((logprobs - ref).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)).clamp(
            -LOW_VAR_LIMIT, LOW_VAR_LIMIT
        ),
    )


def absolute(*, kl_coef: float = 0.001, adaptive: bool = False) -> KlLoss:
    """|d|."""
    return _made(kl_coef, adaptive, lambda logprobs, ref, old: (logprobs - ref).abs())


def corrected_k3(*, kl_coef: float = 0.001, adaptive: bool = False) -> KlLoss:
    """k3 · min(e^(logprob - old logprob), 2), a factor without gradient: for tokens that older weights drew."""
    return _made(kl_coef, adaptive, _corrected_k3, needs_old_logprobs=True)


def _k3(difference: Tensor) -> Tensor:
    return (-difference).exp() - 1 + difference


def _corrected_k3(logprobs: Tensor, ref: Tensor, old: Tensor) -> Tensor:
    ratio = (logprobs - old).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return ratio.clamp(max=CORRECTION_LIMIT) * _k3(logprobs - ref)


def _made(kl_coef: float, adaptive: bool, estimate: Estimate, *, needs_old_logprobs: bool = False) -> KlLoss:
    if adaptive:
        raise ConfigError(
            "the adaptive KL coefficient is not supported: it would be state beside the optimizer",
            field="kl_loss_fn_args.adaptive",
            fix="leave it out and set kl_coef",
        )
    if kl_coef < 0:
        raise ConfigError(f"kl_coef is {kl_coef}", field="kl_loss_fn_args.kl_coef", fix="use 0 or more")
    return KlLoss(float(kl_coef), estimate, needs_old_logprobs)


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
        "corrected_k3": f"{__name__}:corrected_k3",
    },
)
