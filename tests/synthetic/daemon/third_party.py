"""A third party's package on the path, as an installer would leave it: a module and its entry points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

Points = Mapping[str, Mapping[str, str]]
"""Per group of entry points: what each name leads to, as MODULE:OBJECT."""


def install(folder: Path, module: str, code: str | None, points: Points, *, version: str = "0") -> None:
    """Puts a module and the metadata of its distribution into the folder, which has to be on the path by itself.

    The distribution is called as the module is, with dashes. Without `code` there is no module: only its metadata.
    """
    if code is not None:
        (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: {version}\n")
    lines: list[str] = []
    for group, targets in points.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in targets.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
