"""`kpop`: tokens are left out where the policies differ about "this token, or any other"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rftd.workers.algorithms.corrections.correction import Corrected, Mismatch
from rftd.workers.algorithms.corrections.rejection import check_threshold

if TYPE_CHECKING:
    from torch import Tensor

_SURE = 1e-6
"""Probabilities are kept this far from 0 and 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KPop:
    """Keeps tokens for which the larger of the two Bernoulli KLs, p to q and q to p, is at most `threshold`."""

    threshold: float = 0.1

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    @property
    def whole_batch(self) -> bool:
        return False

    @property
    def weighs(self) -> bool:
        return False

    def correct(self, tokens: Mismatch) -> Corrected:
        p = tokens.proximal.exp().clamp(_SURE, 1 - _SURE)
        q = tokens.rollout.exp().clamp(_SURE, 1 - _SURE)
        return Corrected(keep=_bernoulli_kl(p, q).maximum(_bernoulli_kl(q, p)) <= self.threshold)


def _bernoulli_kl(p: Tensor, q: Tensor) -> Tensor:
    return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
