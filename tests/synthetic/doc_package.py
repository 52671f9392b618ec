"""The third party of docs/extending.md as an installed package."""

from __future__ import annotations

import tomllib
from pathlib import Path

from doc_pages import block_named


def install_two_tries(folder: Path) -> None:
    """Puts it below `folder`, as an installer would."""
    project = tomllib.loads(block_named("pyproject.toml").text)["project"]
    (folder / "two_tries.py").write_text(block_named("two_tries.py").text)
    info = folder / "two_tries-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
