"""`m2po`: the tokens with the largest log-ratios of a batch are left out, until their second moment is small."""

from __future__ import annotations

from dataclasses import dataclass

from rftd.workers.algorithms.corrections.correction import Corrected, Mismatch
from rftd.workers.algorithms.corrections.rejection import check_threshold


@dataclass(frozen=True, kw_only=True, slots=True)
class M2po:
    """Keeps as many tokens as can be while the mean of (log w)² over those that may be left out is within `threshold`.

    With `away_only` only those may be that their advantage moves further away: A > 0 and w > 1, or A < 0 and w < 1.
    """

    threshold: float = 0.04
    away_only: bool = True

    def __post_init__(self) -> None:
        if self.threshold != 0:
            check_threshold(self.threshold)

    @property
    def whole_batch(self) -> bool:
        return True

    @property
    def weighs(self) -> bool:
        return False

    def correct(self, tokens: Mismatch) -> Corrected:
        squares = tokens.log_ratio.double().square()
        candidate = tokens.advantages * tokens.log_ratio > 0 if self.away_only else squares >= 0
        ascending = squares[candidate].sort().values
        means = ascending.cumsum(0) / ascending.new_ones(ascending.shape).cumsum(0)
        beyond = ascending[means > self.threshold]  # their means ascend too; equal squares go together
        kept = squares < beyond[0] if len(beyond) else squares >= 0
        return Corrected(keep=~candidate | kept)
