"""`ClosedGroup`: the facts about one closed group passed to an advantage function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Floats: TypeAlias = "NDArray[np.float32]"
"""Array of float32 numbers."""
Ints: TypeAlias = "NDArray[np.int64]"
"""Array of whole numbers."""

MemberField = Literal["mean_logprobs", "lengths", "parts", "steps", "step_rewards", "states", "roles"]
"""Fields missing from `group.closed`, read from the record of each member on request.

With `steps`, each step of a rollout has an entry and an advantage; without, a rollout has one entry, and all of its
steps share the advantage.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClosedGroup:
    """The G experiences of a closed group, in the order of its members; fields that no function requested are None.

    Each experience is a rollout, or for functions that requested `steps` one step of a rollout.
    """

    rewards: Floats  # [G]
    runs: Ints | None = None  # [G], which rollout; None: each its own
    steps: Ints | None = None  # [G], which step of it; None: each its only one
    greedy: NDArray[np.bool_] | None = None  # [G], not sampled, but drawn greedily for a baseline; None: none of them
    mean_logprobs: Floats | None = None  # [G], over the trained tokens
    lengths: Ints | None = None  # [G], trained tokens
    parts: Mapping[str, Floats] = field(
        default_factory=dict
    )  # each [G], what rewards are made of; NaN where one has none
    step_rewards: Floats | None = None  # [G], what the step itself brought; NaN where the workflow did not say
    states: tuple[str, ...] | None = None  # [G], equal where steps began in the same state; empty where unknown
    roles: tuple[str, ...] | None = None  # [G], the agent behind each; empty in a rollout of a single agent
    seed: int = 0
    """Seed for random choices about the group, determined by its position in the experiment."""
    taskset: int = -1
    """Index of the group's taskset, in a stage with several algorithms; else -1."""

    def __post_init__(self) -> None:
        for name in ("runs", "steps", "greedy", "mean_logprobs", "lengths", "step_rewards", "states", "roles"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.rewards):
                raise ValueError(f"{name} has {len(column)} entries for {len(self.rewards)} members")
        for name, column_of_part in self.parts.items():
            if len(column_of_part) != len(self.rewards):
                raise ValueError(f"part {name} has {len(column_of_part)} entries for {len(self.rewards)} members")

    @property
    def run(self) -> Ints:
        """Rollout index of each experience  # [G]"""
        import numpy as np

        return np.arange(len(self.rewards), dtype=np.int64) if self.runs is None else self.runs

    @property
    def step(self) -> Ints:
        """Index of each experience's step within its rollout  # [G]"""
        import numpy as np

        return np.zeros(len(self.rewards), np.int64) if self.steps is None else self.steps

    def exact_rewards(self) -> NDArray[np.float64]:
        """Returns the rewards in float64, for sums  # [G]"""
        import numpy as np

        # Sums in float32 show the order of the members in their last bits; sums in float64, rounded at the end, do not.
        return np.asarray(self.rewards, np.float64)

    def draws(self) -> NDArray[np.float64]:
        """Returns a random number in [0, 1) for each experience, determined by seed, run and step  # [G]"""
        import numpy as np

        # Seeded for each member: members close in any order, and a replay must draw equal numbers for each.
        return np.array(
            [
                np.random.default_rng([self.seed, int(a), int(b)]).random()
                for a, b in zip(self.run, self.step, strict=True)
            ]
        )
