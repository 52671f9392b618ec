"""KL losses: the distance of the policy to a reference, estimated at each token.

Let d = logprob - reference logprob. Use k2 for a loss (its gradient is the gradient of the KL), k1 or k3 for a figure
or a penalty, low_var_kl for a policy likely to drift far, corrected_k3 for tokens drawn by older weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from rftd.ops.errors import ConfigError
from rftd.ops.plugins import Plugins
from rftd.workers.learning.losses.policy_loss import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    from torch import Tensor

LOW_VAR_LIMIT: Final = 10.0
"""Bound of the estimate `low_var_kl`."""
CORRECTION_LIMIT: Final = 2.0
"""Upper bound of the ratio in `corrected_k3`."""

Positive = Annotated[float, msgspec.Meta(gt=0)] | None
"""Type of an optional number above 0."""
Estimate = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]
"""Function of the log-probabilities under policy, reference and rollout weights: the KL estimate of each token  # [N]
each -> [N]
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveRule:
    """Controller of the coefficient for a `target_kl`: coef *= 1 + clip(kl / target_kl - 1, ±0.2) · batch / horizon.

    Source: Ziegler et al. 2019, Fine-Tuning Language Models from Human Preferences, arXiv 1909.08593, section 2.2.
    """

    target_kl: float
    """KL that the controller aims at."""
    horizon: float
    """Number of batch items over which the coefficient adapts: larger is slower."""

    def next(self, coef: float, kl: float, batch_items: int) -> float:
        """Returns the next batch's coefficient from `kl`, measured over this batch of `batch_items`; unchanged for a KL
        that is not finite.
        """
        # Bounded: one odd batch moves the coefficient by a fifth of batch / horizon at most.
        error = kl / self.target_kl - 1
        return coef * (1 + min(max(error, -0.2), 0.2) * batch_items / self.horizon) if math.isfinite(kl) else coef


@dataclass(frozen=True, slots=True)
class KlLoss:
    """A KL term: `coef` times the aggregated `estimate`, added to the loss; if `coef` is 0, no reference is needed.

    As a penalty, the term is subtracted from each token's reward or advantage.
    """

    coef: float
    """Coefficient of the term."""
    estimate: Estimate
    """Function estimating the KL at each token."""
    needs_old_logprobs: bool = False
    """True: the estimate needs the log-probabilities under the weights that drew the tokens."""
    rule: AdaptiveRule | None = None
    """Controller that adapts the coefficient after each batch; None: constant."""


def none(**_ignored: object) -> KlLoss:
    """Disables the KL term, whatever the arguments."""
    return KlLoss(0.0, lambda logprobs, ref, old: logprobs.new_zeros(logprobs.shape))


def k1(
    *, kl_coef: float = 0.001, adaptive: bool = False, target_kl: Positive = None, horizon: Positive = None
) -> KlLoss:
    """Estimates the KL by d: unbiased, of high variance; as a loss, its gradient does not pull to the reference."""
    return _make_loss(kl_coef, _rule(adaptive, target_kl, horizon), lambda logprobs, ref, old: logprobs - ref)


def k2(
    *, kl_coef: float = 0.001, adaptive: bool = False, target_kl: Positive = None, horizon: Positive = None
) -> KlLoss:
    """Estimates the KL by d² / 2: biased, with the gradient of the KL."""
    return _make_loss(
        kl_coef, _rule(adaptive, target_kl, horizon), lambda logprobs, ref, old: 0.5 * (logprobs - ref).square()
    )


def k3(
    *, kl_coef: float = 0.001, adaptive: bool = False, target_kl: Positive = None, horizon: Positive = None
) -> KlLoss:
    """Estimates the KL by e^-d - 1 + d: unbiased, never negative (Schulman 2020, Approximating KL Divergence)."""
    return _make_loss(kl_coef, _rule(adaptive, target_kl, horizon), lambda logprobs, ref, old: _k3(logprobs - ref))


def low_var_kl(
    *, kl_coef: float = 0.001, adaptive: bool = False, target_kl: Positive = None, horizon: Positive = None
) -> KlLoss:
    """Estimates the KL by k3, with d clamped to ±20 and the estimate to ±10, so that no token dominates a batch."""
    return _make_loss(
        kl_coef,
        _rule(adaptive, target_kl, horizon),
        lambda logprobs, ref, old: _k3((logprobs - ref).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)).clamp(
            -LOW_VAR_LIMIT, LOW_VAR_LIMIT
        ),
    )


def absolute(
    *, kl_coef: float = 0.001, adaptive: bool = False, target_kl: Positive = None, horizon: Positive = None
) -> KlLoss:
    """Estimates the KL by |d|."""
    return _make_loss(kl_coef, _rule(adaptive, target_kl, horizon), lambda logprobs, ref, old: (logprobs - ref).abs())


def corrected_k3(
    *, kl_coef: float = 0.001, adaptive: bool = False, target_kl: Positive = None, horizon: Positive = None
) -> KlLoss:
    """Estimates the KL by k3 · min(e^(logprob - old logprob), 2), for tokens of older weights; without a gradient
    through the factor.
    """
    return _make_loss(kl_coef, _rule(adaptive, target_kl, horizon), _corrected_k3, needs_old_logprobs=True)


def _k3(difference: Tensor) -> Tensor:
    """Returns the estimate e^-d - 1 + d of each token  # [N] -> [N]"""
    # Not clamped: low_var_kl clamps its argument, and a clamped plain k3 would be biased.
    return (-difference).exp() - 1 + difference


def _corrected_k3(logprobs: Tensor, ref: Tensor, old: Tensor) -> Tensor:
    """Returns the estimate k3, weighted by the bounded ratio to the weights that drew the token  # [N]"""
    # Detached: the ratio corrects for the weights of the rollout, and is no part of the divergence to minimise.
    ratio = (logprobs - old).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return ratio.clamp(max=CORRECTION_LIMIT) * _k3(logprobs - ref)


def _rule(adaptive: bool, target_kl: float | None, horizon: float | None) -> AdaptiveRule | None:
    """Returns the controller of an adaptive coefficient; None for a constant one. Raises ConfigError."""
    if not adaptive:
        return None
    if target_kl is None or horizon is None or not (target_kl > 0 and horizon > 0):
        raise ConfigError(
            f"an adaptive coefficient needs target_kl and horizon above 0, and has {target_kl} and {horizon}",
            field="kl_loss_fn_args.target_kl",
            fix="give both, such as target_kl: 0.1 and horizon: 10000, or leave adaptive out",
        )
    return AdaptiveRule(target_kl=target_kl, horizon=horizon)


def _make_loss(
    kl_coef: float, rule: AdaptiveRule | None, estimate: Estimate, *, needs_old_logprobs: bool = False
) -> KlLoss:
    """Builds a KL loss. Raises ConfigError for a negative coefficient."""
    if kl_coef < 0:
        raise ConfigError(f"kl_coef is {kl_coef}", field="kl_loss_fn_args.kl_coef", fix="use 0 or more")
    return KlLoss(float(kl_coef), estimate, needs_old_logprobs, rule)


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
"""KL estimators by name: built-in ones, and plug-ins."""
