"""`gdpo`: several rewards, each normalised separately before they are summed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rftd.ops.errors import ConfigError, TrainError
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup, Floats, MemberField
from rftd.workers.learning.algorithms.advantages.moments import moments, std_of_all

if TYPE_CHECKING:
    # Imported where arrays are made: a check of an experiment needs the arguments alone.
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class GdpoAdvantage:
    """The advantage is (S - mean of S) / (std of S + epsilon) over the batch, where S = sum over parts of weight *
    (part - mean) / (std + epsilon), by the mean and unbiased std of the group.

    So a part of small spread, or one seldom earned, is not drowned out by the others, as in a sum that is normalised
    once. A part that a member lacks counts 0; a reward without parts is a single part.

    Source: Liu et al. 2026, GDPO, arXiv 2601.05242; as TRL's multi_objective_aggregation: normalize_then_sum.
    """

    weights: Mapping[str, float] | None = None
    """Weight of each part of the reward, by name; parts without a weight do not count. None: each part has weight 1."""
    epsilon: float = 1e-6
    """Small addend to the standard deviation, against division by zero."""

    greedy_rollouts: ClassVar[int] = 0
    """No greedy rollout is needed."""

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ConfigError(f"epsilon is {self.epsilon}", field="advantage_fn_args.epsilon", fix="use one above 0")
        if self.weights is not None and not (_numbers(self.weights) and any(self.weights.values())):
            raise ConfigError(
                f"weights are {self.weights!r}",
                field="advantage_fn_args.weights",
                fix="give the name of each part a finite number, one of them not 0; or leave weights out",
            )

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """The field needed of the members: the parts of their rewards."""
        return frozenset({"parts"})

    def advantages(self, groups: Sequence[ClosedGroup]) -> Sequence[Floats]:
        """Returns the advantages, computed in float64 and rounded once  # each [G]. Raises TrainError if a weight names
        no part of any reward.
        """
        import numpy as np

        # Names are checked over the batch, not over a group: a part that one group happens to lack is no mistake.
        names = {name for group in groups for name in group.parts}
        self._check_names(names)
        sums = [self._summed(group) for group in groups]
        if not sums:
            return []
        mean = float(np.concatenate(sums).mean())
        std = std_of_all(sums)
        return [((sums_of_group - mean) / (std + self.epsilon)).astype(np.float32) for sums_of_group in sums]

    def informative(self, group: ClosedGroup) -> bool:
        """True for every group: equal rewards may have different parts."""
        return True

    def _summed(self, group: ClosedGroup) -> NDArray[np.float64]:
        """Returns the weighted sum of a group's normalised parts  # [G]"""
        import numpy as np

        if not group.parts:
            return self._normalised(group.exact_rewards())
        total = np.zeros(len(group.rewards))
        for name, values in group.parts.items():
            weight = 1.0 if self.weights is None else self.weights.get(name, 0.0)
            total += weight * self._normalised(np.asarray(values, np.float64))
        return total

    def _normalised(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns values less their mean, in unbiased standard deviations; 0 for a missing one  # [G]"""
        import numpy as np

        # NaN marks a part that a member lacks: it stays at 0 and is left out of mean and std, which it would turn into
        # NaN.
        finite = np.isfinite(values)
        normalised = np.zeros(len(values))
        if finite.any():
            mean, std = moments(values[finite])
            normalised[finite] = (values[finite] - mean) / (std + self.epsilon)
        return normalised

    def _check_names(self, known: set[str]) -> None:
        """Raises TrainError if a weight names none of the `known` parts."""
        unknown = sorted(set(self.weights or ()) - known)
        if unknown and known:
            raise TrainError(
                f"gdpo weighs {', '.join(unknown)}, which is not part of any reward in the batch",
                fix=f"correct advantage_fn_args.weights: the reward gives {', '.join(sorted(known))}",
            )


def _numbers(weights: object) -> bool:
    """True for a mapping to finite numbers: a file may hold anything."""
    return isinstance(weights, Mapping) and all(
        isinstance(weight, int | float) and math.isfinite(weight) for weight in weights.values()
    )
