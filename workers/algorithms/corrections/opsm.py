"""`opsm`: responses with a negative advantage that have drifted are left out."""

from __future__ import annotations

from dataclasses import dataclass

from rftd.workers.algorithms.corrections.correction import Corrected, Mismatch
from rftd.workers.algorithms.corrections.rejection import check_threshold


@dataclass(frozen=True, kw_only=True, slots=True)
class Opsm:
    """Off-policy sequence masking: no loss where A < 0 and the mean of -log w over the response is above `delta`."""

    delta: float = 1e-4

    def __post_init__(self) -> None:
        check_threshold(self.delta)

    @property
    def whole_batch(self) -> bool:
        return False

    @property
    def weighs(self) -> bool:
        return False

    def correct(self, tokens: Mismatch) -> Corrected:
        drift = tokens.mean_of_sequences(-tokens.log_ratio)
        return Corrected(keep=(tokens.advantages >= 0) | (drift <= self.delta))
