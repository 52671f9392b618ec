"""Advantages of groups: how much better than its group each rollout was (numpy).

In reading order:

advantage.py      `AdvantageFunction`: a pure function of closed groups
closed_group.py   what it sees of a group
registry.py       the table, with the token advantages of `training/`
moments.py        mean and standard deviation of a group
group_metrics.py  figures of a batch's groups
none.py           zeros, of who learns from no reward
baselines.py      functions of a group's rewards alone
grpo.py, step_wise_grpo.py, gigpo.py, gdpo.py
                  one file for each of the others
"""

from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup
from rftd.workers.learning.algorithms.advantages.registry import ADVANTAGES, advantage_function, advantages_of

__all__ = ["ADVANTAGES", "AdvantageFunction", "ClosedGroup", "advantage_function", "advantages_of"]
