"""`plugin_files` returns the skeleton of a plug-in for a reward function of veRL: a package to install."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from rftd.daemon.config.verl.settings import VerlSettings

_SECTIONS: Final = ("custom_reward_function", "reward.custom_reward_function")
"""Sections naming a reward function, in older and newer releases."""
_DEFAULT: Final = "compute_score"
"""Name of the function if none is set."""
_MODULE: Final = '''\
"""The reward `{function}` of veRL's, which is in {module}.py beside this file."""

from {module} import {function}

ARGUMENTS = {arguments!r}
"""Arguments that veRL gives the function beside those of each answer."""


class {title}:
    """The score of an answer by `{function}`, which reads the columns `data_source` and `extra_info` of veRL's rows."""

    def score(self, response, truth, task):
        said = {function}(
            data_source=task.raw.get("data_source"),
            solution_str=response,
            ground_truth=truth,
            extra_info=task.raw.get("extra_info"),
            **ARGUMENTS,
        )
        return float(said["score"] if isinstance(said, dict) else said)
'''
"""Template of the plug-in's module."""
_PROJECT: Final = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "{project}"
version = "0"

[project.entry-points."rftd.rewards"]
{function} = "{plugin}:{title}"

[tool.setuptools]
py-modules = ["{module}", "{plugin}"]
"""
"""Template of the plug-in's pyproject.toml."""


@dataclass(frozen=True, slots=True)
class VerlReward:
    """A reward function named by a script: the Python file, the function, and its arguments."""

    path: str
    """Path of the Python file, as in the script."""
    function: str
    """Name of the function."""
    arguments: Mapping[str, Any]
    """Arguments of the function, by name."""

    @property
    def module(self) -> str:
        """Module name of the Python file."""
        return re.sub(r"\W", "_", PurePosixPath(self.path).stem) or "reward"

    @property
    def plugin(self) -> str:
        """Module name of the plug-in."""
        return f"{self.module}_plugin"


def verl_reward(settings: VerlSettings) -> VerlReward | None:
    """Returns the reward function; None if the settings name no file."""
    for section in _SECTIONS:
        setting = settings.given.get(f"{section}.path")
        if setting is None or setting.unknown or not isinstance(setting.value, str) or not setting.value:
            continue
        named = settings.given.get(f"{section}.name")
        function = str(named.value) if named is not None and named.value else _DEFAULT
        prefix = f"{section}.reward_kwargs."
        arguments = {
            name.removeprefix(prefix): reward_setting.value
            for name, reward_setting in settings.given.items()
            if name.startswith(prefix) and not reward_setting.unknown
        }
        return VerlReward(setting.value, function if function.isidentifier() else _DEFAULT, arguments)
    return None


def plugin_files(reward: VerlReward) -> dict[str, str]:
    """Returns the texts of a plug-in package for the reward, by file name; the reward's Python file has to be copied
    next to them.
    """
    title = "".join(word.title() for word in reward.function.split("_")) or "Reward"
    words = {
        "function": reward.function,
        "module": reward.module,
        "plugin": reward.plugin,
        "title": title,
        "project": reward.plugin.replace("_", "-").strip("-"),
    }
    return {
        f"{reward.plugin}.py": _MODULE.format(**words, arguments=dict(reward.arguments)),
        "pyproject.toml": _PROJECT.format(**words),
    }
