"""Advantages, in reading order:

advantage.py        `AdvantageFunction`: of whole groups, from what is known when they have closed (numpy)
closed_group.py     what it sees of a group
token_advantage.py  `TokenAdvantage`: of each token of a batch, beside that, before its step (tensors)
registry.py         the table of both
moments.py          mean and standard deviation of a group
group_metrics.py    what to report of a batch's groups
none.py, grpo.py, reinforce.py, remax.py, rloo.py, opmd.py, asymre.py, best.py, rec.py, step_wise_grpo.py, gigpo.py
                    one file for each function of groups
token_rows.py       returns from the ends of responses, whitening
ppo.py, reinforceplusplus.py, on_policy_distill.py, jsd.py, clipb.py, clipv.py
                    one file for each function of tokens
"""

from rftd.workers.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.algorithms.advantages.closed_group import ClosedGroup
from rftd.workers.algorithms.advantages.registry import ADVANTAGES, advantage_function, advantages_of, token_advantage
from rftd.workers.algorithms.advantages.token_advantage import TokenAdvantage

__all__ = [
    "ADVANTAGES",
    "AdvantageFunction",
    "ClosedGroup",
    "TokenAdvantage",
    "advantage_function",
    "advantages_of",
    "token_advantage",
]
