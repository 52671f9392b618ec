"""The third parties of docs/extending.md as installed packages."""

from __future__ import annotations

import tomllib
from pathlib import Path

from doc_pages import block_named


def install_two_tries(folder: Path) -> None:
    """The reward and the workflow."""
    _install(folder, "two_tries", block_named("pyproject.toml").text)


def install_one_ahead(folder: Path) -> None:
    """The staleness policy and the priority function."""
    _install(folder, "one_ahead", block_named("entry_points.toml").text)


def _install(folder: Path, module: str, toml: str) -> None:
    """Puts it below `folder`, as an installer would."""
    project = tomllib.loads(toml)["project"]
    (folder / f"{module}.py").write_text(block_named(f"{module}.py").text)
    info = folder / f"{module}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
