"""The table of advantage functions, importable without importing any of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rftd.ops.plugins import Plugins
from rftd.streams.spec.spec import AlgorithmSpec
from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup, Floats

_PACKAGE: Final = "rftd.workers.learning.algorithms.advantages"
"""Package of the advantage functions of groups."""
_MODULE_OF_TOKENS: Final = "rftd.workers.learning.token_advantages"
"""Package of the advantage functions of tokens."""

# Names, not classes: control may look a name up without importing training, which the layers forbid.
ADVANTAGES: Final = Plugins[AdvantageFunction](
    "advantage function",
    group="rftd.advantages",
    table={
        "none": f"{_PACKAGE}.none:NoAdvantage",
        "grpo": f"{_PACKAGE}.grpo:GrpoAdvantage",
        "grpo_verl": f"{_PACKAGE}.grpo:GrpoAdvantage",
        "reinforce": f"{_PACKAGE}.baselines:ReinforceAdvantage",
        "remax": f"{_PACKAGE}.baselines:RemaxAdvantage",
        "rloo": f"{_PACKAGE}.baselines:RlooAdvantage",
        "opmd": f"{_PACKAGE}.baselines:OpmdAdvantage",
        "opmd_verl": f"{_PACKAGE}.baselines:OpmdAdvantage",
        "asymre": f"{_PACKAGE}.baselines:AsymreAdvantage",
        "asymre_verl": f"{_PACKAGE}.baselines:AsymreAdvantage",
        "best": f"{_PACKAGE}.baselines:BestAdvantage",
        "rec": f"{_PACKAGE}.baselines:RecAdvantage",
        "step_wise_grpo": f"{_PACKAGE}.step_wise_grpo:StepWiseGrpoAdvantage",
        "gigpo": f"{_PACKAGE}.gigpo:GigpoAdvantage",
        "hierarchical_grpo": f"{_PACKAGE}.hierarchical_grpo:HierarchicalGrpoAdvantage",
        "rae": f"{_PACKAGE}.rae:RaeAdvantage",
        "opo": f"{_PACKAGE}.baselines:OpoAdvantage",
        "maxrl": f"{_PACKAGE}.baselines:MaxRlAdvantage",
        "gpg": f"{_PACKAGE}.baselines:GpgAdvantage",
        "gdpo": f"{_PACKAGE}.gdpo:GdpoAdvantage",
        "pass_at_k": f"{_PACKAGE}.baselines:PassAtKAdvantage",
        "grpo_passk": f"{_PACKAGE}.baselines:GrpoPassKAdvantage",
        "ppo": f"{_MODULE_OF_TOKENS}.returns:PpoAdvantage",
        "reinforceplusplus": f"{_MODULE_OF_TOKENS}.returns:ReinforcePlusPlusAdvantage",
        "reinforceplusplus_baseline": f"{_MODULE_OF_TOKENS}.returns:ReinforcePlusPlusBaselineAdvantage",
        "on_policy_distill": f"{_MODULE_OF_TOKENS}.distillation:OnPolicyDistillAdvantage",
        "jsd": f"{_MODULE_OF_TOKENS}.distillation:JsdAdvantage",
        "clipb": f"{_MODULE_OF_TOKENS}.entropy_clip:ClipBAdvantage",
        "clipv": f"{_MODULE_OF_TOKENS}.entropy_clip:ClipVAdvantage",
        "optimal_token_baseline": f"{_MODULE_OF_TOKENS}.token_baseline:OptimalTokenBaselineAdvantage",
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
