"""Every advantage function by name; importing this imports none of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rftd.streams.spec import AlgorithmSpec
from rftd.workers.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.algorithms.advantages.closed_group import ClosedGroup, Floats
from rftd.workers.algorithms.advantages.token_advantage import TokenAdvantage
from rftd.workers.plugins import Plugins

_HERE: Final = "rftd.workers.algorithms.advantages"

ADVANTAGES: Final = Plugins[AdvantageFunction](
    "advantage function",
    group="rftd.advantages",
    table={
        "none": f"{_HERE}.none:NoAdvantage",
        "grpo": f"{_HERE}.grpo:GrpoAdvantage",
        "grpo_verl": f"{_HERE}.grpo:GrpoAdvantage",
        "reinforce": f"{_HERE}.reinforce:ReinforceAdvantage",
        "remax": f"{_HERE}.remax:RemaxAdvantage",
        "rloo": f"{_HERE}.rloo:RlooAdvantage",
        "opmd": f"{_HERE}.opmd:OpmdAdvantage",
        "opmd_verl": f"{_HERE}.opmd:OpmdAdvantage",
        "asymre": f"{_HERE}.asymre:AsymreAdvantage",
        "asymre_verl": f"{_HERE}.asymre:AsymreAdvantage",
        "best": f"{_HERE}.best:BestAdvantage",
        "rec": f"{_HERE}.rec:RecAdvantage",
        "step_wise_grpo": f"{_HERE}.step_wise_grpo:StepWiseGrpoAdvantage",
        "gigpo": f"{_HERE}.gigpo:GigpoAdvantage",
        "ppo": f"{_HERE}.ppo:PpoAdvantage",
        "reinforceplusplus": f"{_HERE}.reinforceplusplus:ReinforcePlusPlusAdvantage",
        "on_policy_distill": f"{_HERE}.on_policy_distill:OnPolicyDistillAdvantage",
        "jsd": f"{_HERE}.jsd:JsdAdvantage",
        "clipb": f"{_HERE}.clipb:ClipBAdvantage",
        "clipv": f"{_HERE}.clipv:ClipVAdvantage",
    },
)
"""Those that tell tokens apart are `TokenAdvantage`s beside."""


def advantage_function(spec: AlgorithmSpec) -> AdvantageFunction:
    """The function that the algorithm names. Raises ConfigError for an unknown name or arguments that do not fit."""
    return ADVANTAGES.open(spec.advantage, spec.advantage_args)


def token_advantage(spec: AlgorithmSpec) -> TokenAdvantage | None:
    """The same, if it tells tokens apart: then it is asked again with the whole batch. Else None."""
    function = advantage_function(spec)
    return function if isinstance(function, TokenAdvantage) else None


def advantages_of(spec: AlgorithmSpec, groups: Sequence[ClosedGroup]) -> Sequence[Floats]:
    """The advantages of a batch's closed groups, by the function that the algorithm names  # each [G]"""
    return advantage_function(spec).advantages(groups)
