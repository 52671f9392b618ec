"""`step_wise_grpo`: the last reward of each run relative to the group, used for all steps of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup, Floats, MemberField
from rftd.workers.learning.algorithms.advantages.grpo import STD_LEVELS, check_common
from rftd.workers.learning.algorithms.advantages.moments import moments, spread_out, std_of_all

if TYPE_CHECKING:
    # Imported where arrays are made: a check of an experiment needs the arguments alone.
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWiseGrpoAdvantage:
    """The advantage is (reward of the last step - mean) / (std + epsilon) over the runs of a group, equal for every
    step of a run.

    Source: Pan et al. 2025, Trinity-RFT, arXiv 2505.17826, multi-step GRPO.
    """

    epsilon: float = 1e-6
    """Small addend to the standard deviation, against division by zero."""
    enable_step_norm: bool = False
    """True: the advantage is divided by the run's number of steps, so that all runs count equally."""
    std_threshold: float | None = None
    """Groups with a std over runs at or below it are uninformative. None: every group is informative."""
    std_cal_level: str = "group"
    """`group`: division by the std of the group's runs; `batch`: by the std of all runs of the batch; `none`: no
    division.
    """

    greedy_rollouts: ClassVar[int] = 0
    """No greedy rollout is needed."""

    def __post_init__(self) -> None:
        check_common(self.epsilon, self.std_threshold, self.std_cal_level, STD_LEVELS)

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """The field needed of the members: the steps, if their number divides the advantage."""
        return frozenset({"steps"} if self.enable_step_norm else ())

    def advantages(self, groups: Sequence[ClosedGroup]) -> Sequence[Floats]:
        """Returns the advantages, computed in float64 and rounded once; zeros for an uninformative group  # each [G]"""
        per_group = [last_rewards(group) for group in groups]
        whole = std_of_all([rewards for rewards, _, _ in per_group])
        return [self._advantages_of_runs(*last_and_runs, whole) for last_and_runs in per_group]

    def informative(self, group: ClosedGroup) -> bool:
        """False if the std over the runs is at or below `std_threshold`; a single run has no std, and is uninformative
        too.
        """
        return spread_out(last_rewards(group)[0], self.std_threshold)

    def _advantages_of_runs(
        self, rewards: NDArray[np.float64], run: NDArray[np.int64], counts: NDArray[np.int64], whole: float
    ) -> Floats:
        """Returns the advantage of each experience from the last rewards of the runs; zeros for an uninformative group
        # [G]
        """
        import numpy as np

        if not spread_out(rewards, self.std_threshold):
            return np.zeros(len(run), np.float32)
        mean, std = moments(rewards)
        divisor = {"group": std + self.epsilon, "batch": whole + self.epsilon, "none": 1.0}[self.std_cal_level]
        scores = (rewards - mean) / divisor
        return (scores / counts if self.enable_step_norm else scores)[run].astype(np.float32)


def last_rewards(group: ClosedGroup) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns the last step's reward of each of R runs, the run index of each experience, and the number of steps of
    each run  # [R], [G], [R]
    """
    import numpy as np

    names, run, counts = np.unique(group.run, return_inverse=True, return_counts=True)
    last = np.zeros(len(names), np.int64)
    # In order of the steps, so that the last one written for a run is its last step.
    for member in np.argsort(group.step, kind="stable"):
        last[run[member]] = member
    return group.exact_rewards()[last], run, counts
