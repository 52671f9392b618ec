"""Advantages of rewards from which a KL penalty was taken before the group's normalisation, as verl does it.

The default takes the penalty from each token's advantage afterwards, so that a group's std does not scale it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rftd.ops.errors import ConfigError
from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup, Floats, Ints
from rftd.workers.learning.algorithms.advantages.grpo import GrpoAdvantage
from rftd.workers.learning.token_advantages.token_advantage import TokenAdvantage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def penalised(
    function: AdvantageFunction, rewards: Floats, groups: Ints, penalties: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Computes `function`'s advantages of a batch's responses, with each reward reduced by the response's KL penalty; 0
    for responses without a group  # [B] each

    `groups` has the group's index of each response, or -1. Members of a group that are missing from the batch do not
    count.
    """
    import numpy as np

    advantages = np.zeros(len(rewards), np.float32)
    # float64: the penalty is small beside the reward, and the group's mean is taken off again.
    net_rewards = rewards.astype(np.float64) - penalties
    numbers = [np.flatnonzero(groups == group) for group in np.unique(groups[groups >= 0])]
    # Only members that are in the batch: a penalty is known of them alone. So a group's mean differs from that of the
    # default.
    views = [
        ClosedGroup(rewards=net_rewards[members].astype(np.float32), seed=index)
        for index, members in enumerate(numbers)
    ]
    for members, values in zip(numbers, function.advantages(views), strict=True):
        advantages[members] = values
    return advantages


def check_penalised(function: AdvantageFunction, name: str) -> None:
    """Raises ConfigError if the advantage function `name` needs more than a group's rewards, and so cannot take reduced
    rewards.
    """
    if isinstance(function, TokenAdvantage):
        why = "tells tokens apart, and takes the penalty where its own formula has it"
    elif function.member_fields or function.greedy_rollouts:
        why = "looks at more than the rewards of a group, which is all that is known where the penalty is"
    elif isinstance(function, GrpoAdvantage) and function.duplicate_experiences:
        why = "trains some groups twice (duplicate_experiences), which would then count twice in their std"
    else:
        return
    raise ConfigError(
        f"is before, but {name} {why}",
        field="algorithm.kl_penalty_place",
        fix="write after, or use a function of rewards alone, such as grpo or rloo",
    )
