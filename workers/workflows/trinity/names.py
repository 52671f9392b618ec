"""The modules and names of Trinity-RFT available to a source, and where rftd defines them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

PACKAGE: Final = "trinity"

_HERE: Final = "rftd.workers.workflows.trinity"
_CLASSES: Final = {
    "Task": "task:TrinityTask",
    "Workflow": "classes:TrinityWorkflow",
    "MultiTurnWorkflow": "classes:TrinityMultiTurn",
    "BaseSimpleWorkflow": "classes:TrinitySimpleBase",
    "SimpleWorkflow": "classes:TrinitySimple",
    "AsyncSimpleWorkflow": "classes:TrinityAsyncSimple",
    "MathWorkflow": "classes:TrinityMath",
    "AsyncMathWorkflow": "classes:TrinityAsyncMath",
}
_STEP_WISE: Final = {
    "StepWiseRewardWorkflow": "step_wise:StepWiseReward",
    "AsyncStepWiseRewardWorkflow": "step_wise:AsyncStepWiseReward",
    "RewardPropagationWorkflow": "step_wise:RewardPropagation",
    "AsyncRewardPropagationWorkflow": "step_wise:AsyncRewardPropagation",
}
_EXPERIENCE: Final = {"Experience": "experience:TrinityExperience", "EID": "experience:ExperienceId"}
_MODEL: Final = {"ModelWrapper": "model:TrinityModel"}
_LOG: Final = {"get_logger": "classes:get_logger"}
_REGISTRY: Final = {"Registry": "registry:ClassRegistry"}
_REWARD: Final = {"RewardFn": "rewards:TrinityReward"}
_MATH_REWARDS: Final = {
    "MathRewardFn": "rewards:TrinityMathReward",
    "MathBoxedRewardFn": "rewards:TrinityBoxedReward",
}
_REWARDS: Final = {
    **_MATH_REWARDS,
    "AccuracyReward": "rewards:TrinityAccuracyReward",
    "FormatReward": "rewards:TrinityFormatReward",
    "CountDownRewardFn": "rewards:TrinityCountdownReward",
    "MathDAPORewardFn": "rewards:TrinityDapoReward",
}
WORKFLOWS: Final = "WORKFLOWS"
"""Registry of workflows, made anew for each source."""
REWARD_FUNCTIONS: Final = "REWARD_FUNCTIONS"
"""Registry of rewards, made anew for each source."""
_OWN: Final = {name: "" for name in (WORKFLOWS, REWARD_FUNCTIONS)}

MODULES: Final[Mapping[str, Mapping[str, str]]] = {
    "trinity": {},
    "trinity.common": {},
    "trinity.common.config": {"FormatConfig": "task:FormatConfig", "GenerationConfig": "task:GenerationConfig"},
    "trinity.common.experience": _EXPERIENCE,
    "trinity.common.models": _MODEL,
    "trinity.common.models.model": _MODEL,
    "trinity.common.rewards": {**_REWARD, **_REWARDS, REWARD_FUNCTIONS: ""},
    "trinity.common.rewards.accuracy_reward": {"AccuracyReward": _REWARDS["AccuracyReward"]},
    "trinity.common.rewards.countdown_reward": {"CountDownRewardFn": _REWARDS["CountDownRewardFn"]},
    "trinity.common.rewards.dapo_reward": {"MathDAPORewardFn": _REWARDS["MathDAPORewardFn"]},
    "trinity.common.rewards.format_reward": {"FormatReward": _REWARDS["FormatReward"]},
    "trinity.common.rewards.math_reward": _MATH_REWARDS,
    "trinity.common.rewards.reward_fn": {**_REWARD, REWARD_FUNCTIONS: ""},
    "trinity.common.workflows": {**_CLASSES, **_STEP_WISE, WORKFLOWS: ""},
    "trinity.common.workflows.step_wise_workflow": _STEP_WISE,
    "trinity.common.workflows.workflow": {**_CLASSES, **_EXPERIENCE, **_MODEL, **_REWARD, WORKFLOWS: ""},
    "trinity.utils": {},
    "trinity.utils.log": _LOG,
    "trinity.utils.registry": _REGISTRY,
}
"""Names of each module, with their place in this folder; an empty place: made for the source."""


def is_trinity(module: str) -> bool:
    """True for the name of a module of Trinity-RFT."""
    return module.partition(".")[0] == PACKAGE


def is_trinity_class(target: type) -> bool:
    """True for Trinity-RFT's base class of workflows: rftd's form of it, or the installed one."""
    ours = target.__module__ == f"{_HERE}.classes" and target.__name__ == "TrinityWorkflow"
    return ours or (target.__name__ == "Workflow" and is_trinity(target.__module__))


def place_of(module: str, name: str) -> str:
    """Returns `module:attribute` of an available name; empty for a name made for the source."""
    place = MODULES[module][name]
    return f"{_HERE}.{place}" if place else ""


def unavailable(module: str, names: Sequence[str]) -> str | None:
    """Returns the first part of an import missing from rftd's modules: a module, or `module.name`; None if complete."""
    if module not in MODULES:
        return module
    known = MODULES[module]
    for name in names:
        if name != "*" and name not in known and f"{module}.{name}" not in MODULES:
            return f"{module}.{name}"
    return None


def alternatives(module: str) -> str:
    """Returns what rftd has in a module, or near it, for an error message."""
    while module not in MODULES:
        module = module.rpartition(".")[0]
    below = sorted(name for name in MODULES if name.startswith(f"{module}."))
    names = ", ".join(MODULES[module] or below)
    return f"rftd has of {module}: {names}"
