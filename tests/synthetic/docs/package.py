"""The third parties of docs/extending.md as installed packages."""

from __future__ import annotations

import tomllib
from pathlib import Path

from synthetic.daemon.third_party import install
from synthetic.docs.pages import block_named


def install_two_tries(folder: Path) -> None:
    """The reward and the workflow."""
    _install(folder, "two_tries", block_named("pyproject.toml").text)


def install_one_ahead(folder: Path) -> None:
    """The staleness policy and the priority function."""
    _install(folder, "one_ahead", block_named("entry_points.toml").text)


def install_hardest_first(folder: Path) -> None:
    """The data selector."""
    _install(folder, "hardest_first", block_named("selectors.toml").text)


def install_rehearsal_log(folder: Path) -> None:
    """The stream backend."""
    _install(folder, "rehearsal_log", block_named("log_backends.toml").text)


def install_careful(folder: Path) -> None:
    """The agent program of docs/agent_programs.md."""
    _install(folder, "careful", block_named("agents.toml").text)


def install_packed_weights(folder: Path) -> None:
    """The weight channel."""
    _install(folder, "packed_weights", block_named("weight_channels.toml").text)


def install_next_token(folder: Path) -> None:
    """The rollout engine."""
    _install(folder, "next_token", block_named("rollout_engines.toml").text)


def _install(folder: Path, module: str, toml: str) -> None:
    """Puts it below `folder`, as an installer would."""
    project = tomllib.loads(toml)["project"]
    assert project["name"] == module.replace("_", "-")
    install(folder, module, block_named(f"{module}.py").text, project["entry-points"])
