"""Losses and divergences of plain tensors, for a notebook: the functions that a stage trains with, without a daemon.

A batch is B responses, padded to T tokens; `mask` is 1 at trained tokens and 0 elsewhere, where values are ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rftd.ops.errors import ConfigError
from rftd.workers.learning.losses.aggregation import Aggregation, TokenWeights
from rftd.workers.learning.losses.kl_losses import KL_LOSSES
from rftd.workers.learning.losses.policy_loss import LossNeeds, LossTokens
from rftd.workers.learning.losses.registry import POLICY_LOSSES

if TYPE_CHECKING:
    from torch import Tensor


def policy_loss(
    name: str,
    *,
    logprobs: Tensor,
    mask: Tensor,
    old_logprobs: Tensor | None = None,
    advantages: Tensor | None = None,
    expert: Tensor | None = None,
    loss_agg_mode: str | None = None,
    loss_scale_factor: float | None = None,
    stage_step: int = 1,
    **arguments: Any,
) -> tuple[Tensor, dict[str, float]]:
    """Returns the policy loss of a batch, and its figures.

    logprobs, mask, old_logprobs [B, T]; advantages [B] or [B, T], zeros if omitted; expert [B], True for an expert's
    rows; `arguments` are the loss's own. Raises ConfigError for an unknown name, unfit arguments, or unequal shapes.
    """
    loss = POLICY_LOSSES.open(name, arguments)
    needs = LossNeeds.of(loss)
    if needs.old_logprobs and old_logprobs is None:
        raise ConfigError(f"{name} needs old_logprobs", field="old_logprobs", fix="give those that drew the tokens")
    keep, sequence = _places(logprobs, mask)
    expert = mask.new_zeros(len(mask)).bool() if expert is None else expert.bool()
    if advantages is not None and advantages.shape == logprobs.shape[:1]:
        advantages = advantages[:, None].expand_as(logprobs)
    chosen = logprobs[keep]
    tokens = LossTokens(
        logprobs=chosen,
        # No loss of ours reads entropies; the bonus is a term of the objective, not of the policy loss.
        entropies=chosen.new_zeros(chosen.shape),
        old_logprobs=_trained_values("old_logprobs", old_logprobs, keep, chosen),
        ref_logprobs=None,
        advantages=_trained_values("advantages", advantages, keep, chosen),
        expert=expert[sequence],
        sequence=sequence,
        sequences=len(mask),
        stage_step=stage_step,
    )
    mode = loss_agg_mode or needs.loss_agg_mode or "token-mean"
    aggregation = Aggregation(mode, loss_scale_factor, needs.expert_agg_mode)
    weights = _weights(aggregation, mask, expert, sequence, chosen)
    token_loss = loss.per_token(tokens)
    weight, mean = (weights.of_kind, weights.mean_of_kind) if token_loss.by_kind else (weights.whole, weights.mean)
    reported = {key: float((value * mean).sum()) for key, value in token_loss.metrics.items()}
    reported |= {key: float((value * weights.response_mean).sum()) for key, value in token_loss.of_responses.items()}
    return (token_loss.loss * weight).sum(), reported


def kl(
    name: str,
    *,
    logprobs: Tensor,
    ref_logprobs: Tensor,
    mask: Tensor,
    old_logprobs: Tensor | None = None,
    loss_agg_mode: str = "token-mean",
    loss_scale_factor: float | None = None,
) -> Tensor:
    """Returns the KL estimate named `name` to a reference, aggregated and without coefficient; tensors are [B, T].

    Raises ConfigError for an unknown name or unequal shapes.
    """
    function = KL_LOSSES.open(name)
    if function.needs_old_logprobs and old_logprobs is None:
        raise ConfigError(f"{name} needs old_logprobs", field="old_logprobs", fix="give them, or take k3")
    keep, sequence = _places(logprobs, mask)
    chosen = logprobs[keep]
    estimate = function.estimate(
        chosen,
        _trained_values("ref_logprobs", ref_logprobs, keep, chosen),
        _trained_values("old_logprobs", old_logprobs, keep, chosen),
    )
    none = mask.new_zeros(len(mask)).bool()
    weights = _weights(Aggregation(loss_agg_mode, loss_scale_factor), mask, none, sequence, chosen)
    return (estimate * weights.whole).sum()


def _places(logprobs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Returns True at trained tokens, and the row of each trained token  # [B, T] bool, [N]"""
    if logprobs.ndim != 2 or mask.shape != logprobs.shape:
        raise ConfigError(
            f"logprobs are {tuple(logprobs.shape)}, the mask is {tuple(mask.shape)}",
            field="mask",
            fix="give both as [responses, tokens], padded to one length",
        )
    keep = mask != 0
    # Row-major, like boolean indexing: the n-th row number belongs to the n-th chosen token.
    return keep, keep.nonzero()[:, 0]


def _trained_values(field: str, values: Tensor | None, keep: Tensor, like: Tensor) -> Tensor:
    """Returns the values at trained tokens, as one row; zeros if None. Raises ConfigError for another shape."""
    if values is None:
        return like.new_zeros(like.shape)
    if values.shape != keep.shape:
        raise ConfigError(
            f"{field} are {tuple(values.shape)} for a mask of {tuple(keep.shape)}",
            field=field,
            fix="give one value for each token of each response",
        )
    return values[keep].to(like.dtype)


def _weights(
    aggregation: Aggregation, mask: Tensor, expert: Tensor, sequence: Tensor, like: Tensor
) -> TokenWeights[Tensor]:
    """Returns the weight of each trained token  # [N]"""
    weights = aggregation.weights([row.numpy() for row in mask.detach().cpu()], expert.tolist())
    return weights.map(lambda kind: like.new_tensor(kind)[sequence])
