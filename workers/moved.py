"""Modules of the release before that third parties may still import, under the names that they had.

Each holds what the module of today holds, and warns with its name. `rftd.workers.api` has what does not move.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

_ROOM: Final = "rftd.workers"

MOVED: Final = {
    "algorithms.advantages.token_advantage": "training.token_advantages.token_advantage",
    "algorithms.aggregation": "training.losses.aggregation",
    "algorithms.batch_tokens": "training.losses.batch_tokens",
    "algorithms.corrections": "training.corrections",
    "algorithms.corrections.correction": "training.corrections.correction",
    "algorithms.from_tensors": "training.losses.from_tensors",
    "algorithms.policy_losses": "training.losses",
    "algorithms.policy_losses.policy_loss": "training.losses.policy_loss",
    "chat": "tasksets",
    "chat.message": "tasksets.message",
    "chat.model": "rollout.model",
    "chat.response": "rollout.response",
    "chat.tokenizer": "tasksets.tokenizer",
    "policies": "control.policies",
    "policies.paced": "control.policies.paced",
    "policies.policy": "control.policies.policy",
    "policies.pool": "control.policies.buffer_index",
    "rewards": "rollout.rewards",
    "rewards.reward": "rollout.rewards.reward",
    "rewards.rollout_view": "rollout.rewards.rollout_view",
    "trainer": "training",
    "trainer.engine": "training.engine",
    "workflows": "rollout.workflows",
    "workflows.result": "rollout.workflows.result",
    "workflows.trajectory": "rollout.workflows.trajectory",
    "workflows.workflow": "rollout.workflows.workflow",
}

RENAMED: Final = {"policies.pool": {"Pool": "BufferIndex", "Ready": "ReadyGroup"}}
"""Names of a module that moved, and how they are called today."""


class MovedModules(MetaPathFinder, Loader):
    """Finds the modules of `MOVED`, as new modules with the same objects."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of a module that moved; None for any other."""
        old = fullname.removeprefix(f"{_ROOM}.")
        if old == fullname or old not in MOVED:
            return None
        is_package = any(other.startswith(f"{old}.") for other in MOVED)
        return ModuleSpec(fullname, self, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> None:
        """None, which lets the import system make an ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module what the one of today holds."""
        old = module.__name__.removeprefix(f"{_ROOM}.")
        now = f"{_ROOM}.{MOVED[old]}"
        there = importlib.import_module(now)
        # A module of its own with the same names: were it today's, the import system would overwrite that one's
        # `__spec__`.
        module.__dict__.update({name: value for name, value in vars(there).items() if not name.startswith("__")})
        module.__dict__.update({name: getattr(there, today) for name, today in RENAMED.get(old, {}).items()})
        # Packages do not warn: importing one of their modules imports them first, and would warn twice.
        if not hasattr(module, "__path__"):
            warnings.warn(
                f"{module.__name__} is now {now}; import what you need from {_ROOM}.api",
                DeprecationWarning,
                stacklevel=2,
            )


def find_moved_modules() -> None:
    """Makes the interpreter find them, after all that is really there."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        # At the end, so that a module which is really there is found first, whatever its name was once.
        sys.meta_path.append(MovedModules())
