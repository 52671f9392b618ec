"""Imports of veRL command lines, and of scripts that hold one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.verl.importing import ImportedExperiment, import_command, import_script

Leaves = dict[str, Any]
Fields = Callable[..., Leaves]
Outcomes = Callable[..., dict[str, str]]
Refused = Callable[[str], str]


def leaves(node: Any, above: str = "") -> Leaves:
    """The values of a tree by their paths, `a.b[0].c`."""
    if isinstance(node, dict):
        return {path: v for key, value in node.items() for path, v in leaves(value, f"{above}.{key}").items()}
    if isinstance(node, list) and any(isinstance(item, dict) for item in node):
        return {path: v for at, value in enumerate(node) for path, v in leaves(value, f"{above}[{at}]").items()}
    return {above.removeprefix("."): node}


SMALL = ("algorithm.adv_estimator=grpo", "data.train_files=d/train.jsonl", "actor_rollout_ref.model.path=/m")


def small_command(*overrides: str) -> ImportedExperiment:
    """The import of a whole small command line with these overrides."""
    return import_command(["python3", "-m", "verl.trainer.main_ppo", *SMALL, *overrides])


def script(text: str) -> ImportedExperiment:
    """The import of a script."""
    return import_script(text, "run.sh")


@pytest.fixture
def command() -> Callable[..., ImportedExperiment]:
    """Imports a whole small command line with overrides."""
    return small_command


@pytest.fixture
def program() -> Callable[..., ImportedExperiment]:
    """Imports the same for another program of veRL's, whose name comes first."""
    return lambda name, *overrides: import_command(["python3", "-m", name, *SMALL, *overrides])


@pytest.fixture
def flat() -> Callable[[str], Leaves]:
    """The values of a file's text by their paths."""
    return lambda text: leaves(yaml.safe_load(text))


@pytest.fixture
def fields() -> Fields:
    """The fields that overrides become."""
    return lambda *overrides: leaves(yaml.safe_load(small_command(*overrides).text))


@pytest.fixture
def outcomes() -> Outcomes:
    """What became of each key of a command line, by its name."""
    return lambda *overrides: {line.key.partition("=")[0]: line.outcome for line in small_command(*overrides).lines}


@pytest.fixture
def refused() -> Refused:
    """The errors that a script gives; it must give some."""

    def call(text: str) -> str:
        with pytest.raises(ConfigErrors) as caught:
            script(text)
        assert caught.value.exit_status == 2
        return str(caught.value)

    return call
