"""Aggregation of a batch's per-token values to one number.

Every mode is a weighted sum, with weights determined by the batch's masks alone. A batch may therefore be computed in
any micro-batches: their sums add up to the value of the complete batch. A response without a trained token does not
count.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from rftd.ops.errors import ConfigError

if TYPE_CHECKING:
    # Imported where arrays are made: a check of an experiment needs the arguments alone.
    import numpy as np
    from numpy.typing import NDArray

Counts: TypeAlias = "NDArray[np.int64]"  # [B], trained tokens of each response
"""Numbers of trained tokens of each response  # [B]"""
Weights: TypeAlias = "NDArray[np.float64]"  # [B], weight of each token of a response
"""Weight of a token of each response  # [B]"""
T = TypeVar("T")
"""Type of the weights' arrays."""
U = TypeVar("U")
"""Type of the converted weights' arrays."""


OBSERVED: Final = 2
"""Mask of a token written by the environment, and trained by its likelihood (`echo`); 1 is the model's own token."""


def token_mean(counts: Counts, norm: float) -> Weights:
    """Averages over all trained tokens: long responses count more."""
    # float64 until the micro-batches are made: 1 / N of a large batch times N must be 1 again.
    return _equal(counts, 1.0 / max(1, int(counts.sum())))


def sequence_mean_token_sum(counts: Counts, norm: float) -> Weights:
    """Averages, over responses, the sum over each response's tokens."""
    return _equal(counts, 1.0 / _trained(counts))


def sequence_mean_token_mean(counts: Counts, norm: float) -> Weights:
    """Averages, over responses, the mean over each response's tokens: all responses count equally."""
    return 1.0 / (counts.clip(min=1) * _trained(counts))


def sequence_mean_token_sum_norm(counts: Counts, norm: float) -> Weights:
    """Averages, over responses, the sum over each response's tokens divided by `loss_scale_factor` (`norm`), or else by
    the longest response's length. Source: Liu et al. 2025, Dr. GRPO, arXiv 2503.20783.
    """
    return _equal(counts, 1.0 / (norm * _trained(counts)))


def _equal(counts: Counts, weight: float) -> Weights:
    """Returns the same weight for each response."""
    import numpy as np

    return np.full(len(counts), weight)


def _trained(counts: Counts) -> int:
    """Returns the number of responses with a trained token; 1 if there is none."""
    return max(1, int((counts != 0).sum()))


AGGREGATIONS: Final[dict[str, Callable[[Counts, float], Weights]]] = {
    "token-mean": token_mean,
    "seq-mean-token-sum": sequence_mean_token_sum,
    "seq-mean-token-mean": sequence_mean_token_mean,
    "seq-mean-token-sum-norm": sequence_mean_token_sum_norm,
}
"""The modes by name; each function returns token weights [B] from the number of trained tokens of each response
[B] and `norm`.
"""


def check(mode: str) -> None:
    """Raises ConfigError for an unknown mode, with the nearest name."""
    if mode not in AGGREGATIONS:
        near = difflib.get_close_matches(mode, AGGREGATIONS, 1)
        raise ConfigError(
            f"unknown aggregation {mode!r}",
            field="algorithm.loss_agg_mode",
            fix=(f"did you mean {near[0]!r}? " if near else "") + f"one of {', '.join(AGGREGATIONS)}",
        )


def token_weights(mode: str, masks: Sequence[NDArray[Any]], *, norm: float | None = None) -> Weights:
    """Returns the weight of one trained token of each response, in a batch of all responses  # [B]"""
    import numpy as np

    check(mode)
    if not masks:
        return AGGREGATIONS[mode](np.zeros(0, np.int64), 1.0 if norm is None else norm)
    # Lengths count masked tokens too, counts do not: a tool's text makes a response long, and is not trained.
    lengths = [len(mask) for mask in masks]
    trained = np.concatenate(masks) != 0
    counts = np.bincount(np.repeat(np.arange(len(masks)), lengths)[trained], minlength=len(masks))
    return AGGREGATIONS[mode](counts, float(max(1, *lengths)) if norm is None else norm)


@dataclass(frozen=True, slots=True)
class TokenWeights(Generic[T]):
    """Weights of each token in the sums of its batch. Rows are of two kinds: an expert's, and all others."""

    whole: T
    """Weights of the stage's aggregation over all rows of the batch."""
    of_kind: T
    """Weights of the stage's aggregation over the rows of the token's kind only: the weights of each kind add up
    separately.
    """
    mean: T
    """Weights of token-mean over all rows of the batch."""
    mean_of_kind: T
    """Weights of token-mean over the rows of the token's kind only."""
    response_mean: T
    """Weights of seq-mean-token-mean over all rows of the batch."""

    def map(self, change: Callable[[T], U]) -> TokenWeights[U]:
        """Applies a function to each of the five weights."""
        return TokenWeights(
            whole=change(self.whole),
            of_kind=change(self.of_kind),
            mean=change(self.mean),
            mean_of_kind=change(self.mean_of_kind),
            response_mean=change(self.response_mean),
        )


@dataclass(frozen=True, slots=True)
class Aggregation:
    """An aggregation mode with its arguments. Raises ConfigError for an unknown mode or a norm not above 0."""

    mode: str = "token-mean"
    """Name of the mode."""
    norm: float | None = None
    """Divisor of seq-mean-token-sum-norm; None: the length of the batch's longest response."""
    expert_mode: str | None = None
    """Mode of an expert's rows, if they are aggregated separately; None: `mode`."""
    observations: bool = False
    """True: the observed tokens of each response form a row of their own, of the expert's kind, behind all others."""

    def __post_init__(self) -> None:
        check(self.mode)
        check(self.expert_mode or self.mode)
        if self.norm is not None and not self.norm > 0:
            raise ConfigError(
                f"loss_scale_factor is {self.norm}", field="algorithm.loss_scale_factor", fix="use one above 0"
            )

    def weights(self, masks: Sequence[NDArray[Any]], expert: Sequence[bool] = ()) -> TokenWeights[Weights]:
        """Returns the weights of one trained token of each response; `expert` is True for responses of an expert's rows
        # [B] each

        With `observations`, those of one observed token of each response follow  # [2 B] each
        """
        import numpy as np

        if self.observations:
            observed = [mask == OBSERVED for mask in masks]
            kinds = list(expert) or [False] * len(masks)
            masks = [*(mask == 1 for mask in masks), *observed]
            expert = [*kinds, *[True] * len(observed)]
        whole = token_weights(self.mode, masks, norm=self.norm)
        mean = token_weights("token-mean", masks)
        responses = token_weights("seq-mean-token-mean", masks)
        # Without an expert both kinds are the whole batch: the same arrays, which nobody changes in place.
        if not any(expert):
            return TokenWeights(whole=whole, of_kind=whole, mean=mean, mean_of_kind=mean, response_mean=responses)
        of_kind = np.empty_like(whole)
        mean_of_kind = np.empty_like(mean)
        for kind, mode in ((True, self.expert_mode or self.mode), (False, self.mode)):
            rows = [number for number, each in enumerate(expert) if each is kind]
            chosen = [masks[number] for number in rows]
            of_kind[rows] = token_weights(mode, chosen, norm=self.norm)
            mean_of_kind[rows] = token_weights("token-mean", chosen)
        return TokenWeights(whole=whole, of_kind=of_kind, mean=mean, mean_of_kind=mean_of_kind, response_mean=responses)
