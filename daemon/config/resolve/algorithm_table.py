"""What the experiment file needs to know of algorithms: their parts, defaults and needs."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Entry:
    """What a type takes where the file says nothing, and what it needs."""

    repeat_times: int
    group: bool
    """Advantages compare the answers to one task."""
    rows: bool
    """Trains on the rows of a dataset, without exploring."""
    advantage: str = "none"
    policy_loss: str = "sft"
    kl_loss: str = "none"
    entropy_loss: str = "none"
    loss_agg_mode: str = "token-mean"


_ENTRIES: Final = {
    "grpo": Entry(8, True, False, "grpo", "ppo", "k2", "default"),
    "sft": Entry(1, False, True),
}
_FUNCTIONS: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "advantage": {"none": {}, "grpo": {}},
    "policy_loss": {"ppo": {"clip_range": 0.2, "clip_ratio_c": 3.0}, "sft": {}},
    "kl_loss": {name: {"kl_coef": 0.001} for name in ("k1", "k2", "k3", "low_var_kl", "abs")} | {"none": {}},
    "entropy_loss": {"none": {}, "default": {"entropy_coef": 0.0}},
}
STRATEGIES: Final = ("default", "staleness_control")
GUIDE: Final = frozenset(
    {
        "ppo",
        "grpo",
        "dapo",
        "reinforceplusplus",
        "rloo",
        "opmd",
        "asymre",
        "topr",
        "cispo",
        "gspo",
        "sapo",
        "mix",
        "mix_chord",
        "raft",
        "sppo",
        "rec",
        "multi_step_grpo",
        "gigpo",
        "on_policy_distill",
        "jsd",
        "dpo",
        "sft",
        "cpt",
        "grpo_verl",
        "m2po",
    }
)
"""Types of the guide; those that are not in the table cannot be run yet."""


def names() -> tuple[str, ...]:
    """Every type that can be run."""
    return tuple(_ENTRIES)


def find(kind: str) -> Entry | None:
    """The defaults of a type; None if it cannot be run."""
    return _ENTRIES.get(kind)


def nearest(kind: str) -> str | None:
    """The type of the guide that was probably meant."""
    return next(iter(difflib.get_close_matches(kind, sorted(GUIDE), 1)), None)


def functions(part: str) -> tuple[str, ...]:
    """Names that a part of the objective may have."""
    return tuple(_FUNCTIONS[part])


def default_args(part: str, name: str) -> dict[str, Any]:
    """The function's own arguments, over which the user's are merged."""
    return _FUNCTIONS[part].get(name, {})
