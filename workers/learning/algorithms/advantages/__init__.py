"""Advantages of groups: how much better than its group each rollout was (numpy).

In reading order:

advantage.py      `AdvantageFunction`: a pure function of closed groups
closed_group.py   the facts about a group passed to an advantage function
registry.py       the table, including the functions of `token_advantages/`
by_taskset.py     the function of a stage with tasksets of several algorithms
moments.py        mean and standard deviation of a group
group_metrics.py  figures of a batch's groups
none.py           zeros, for algorithms without rewards
baselines.py      functions of a group's rewards alone
grpo.py, step_wise_grpo.py, gigpo.py, gdpo.py, hierarchical_grpo.py, rae.py
                  one file for each of the others; the last two for rollouts of several agents
"""

from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup
from rftd.workers.learning.algorithms.advantages.registry import ADVANTAGES, advantage_function, advantages_of

__all__ = ["ADVANTAGES", "AdvantageFunction", "ClosedGroup", "advantage_function", "advantages_of"]
