"""The table of advantage functions, importable without importing any of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rftd.ops.plugins import Plugins
from rftd.streams.spec.spec import AlgorithmSpec
from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup, Floats

_HERE: Final = "rftd.workers.learning.algorithms.advantages"
_TOKENS: Final = "rftd.workers.learning.token_advantages"

# Names, not classes: control may look a name up without importing training, which the layers forbid.
ADVANTAGES: Final = Plugins[AdvantageFunction](
    "advantage function",
    group="rftd.advantages",
    table={
        "none": f"{_HERE}.none:NoAdvantage",
        "grpo": f"{_HERE}.grpo:GrpoAdvantage",
        "grpo_verl": f"{_HERE}.grpo:GrpoAdvantage",
        "reinforce": f"{_HERE}.baselines:ReinforceAdvantage",
        "remax": f"{_HERE}.baselines:RemaxAdvantage",
        "rloo": f"{_HERE}.baselines:RlooAdvantage",
        "opmd": f"{_HERE}.baselines:OpmdAdvantage",
        "opmd_verl": f"{_HERE}.baselines:OpmdAdvantage",
        "asymre": f"{_HERE}.baselines:AsymreAdvantage",
        "asymre_verl": f"{_HERE}.baselines:AsymreAdvantage",
        "best": f"{_HERE}.baselines:BestAdvantage",
        "rec": f"{_HERE}.baselines:RecAdvantage",
        "step_wise_grpo": f"{_HERE}.step_wise_grpo:StepWiseGrpoAdvantage",
        "gigpo": f"{_HERE}.gigpo:GigpoAdvantage",
        "opo": f"{_HERE}.baselines:OpoAdvantage",
        "maxrl": f"{_HERE}.baselines:MaxRlAdvantage",
        "gpg": f"{_HERE}.baselines:GpgAdvantage",
        "gdpo": f"{_HERE}.gdpo:GdpoAdvantage",
        "pass_at_k": f"{_HERE}.baselines:PassAtKAdvantage",
        "grpo_passk": f"{_HERE}.baselines:GrpoPassKAdvantage",
        "ppo": f"{_TOKENS}.returns:PpoAdvantage",
        "reinforceplusplus": f"{_TOKENS}.returns:ReinforcePlusPlusAdvantage",
        "reinforceplusplus_baseline": f"{_TOKENS}.returns:ReinforcePlusPlusBaselineAdvantage",
        "on_policy_distill": f"{_TOKENS}.distillation:OnPolicyDistillAdvantage",
        "jsd": f"{_TOKENS}.distillation:JsdAdvantage",
        "clipb": f"{_TOKENS}.entropy_clip:ClipBAdvantage",
        "clipv": f"{_TOKENS}.entropy_clip:ClipVAdvantage",
        "optimal_token_baseline": f"{_TOKENS}.token_baseline:OptimalTokenBaselineAdvantage",
    },
)
"""The advantage functions by name, of groups and of tokens: a stage names exactly one. Functions of tokens start from
their own advantages of groups.
"""


def advantage_function(spec: AlgorithmSpec) -> AdvantageFunction:
    """Builds the advantage function named by the algorithm. Raises ConfigError for an unknown name or unfit
    arguments.
    """
    return ADVANTAGES.open(spec.advantage, spec.advantage_args)


def advantages_of(spec: AlgorithmSpec, groups: Sequence[ClosedGroup]) -> Sequence[Floats]:
    """Returns the advantages of a batch's closed groups, by the function named by the algorithm  # each [G]"""
    return advantage_function(spec).advantages(groups)
