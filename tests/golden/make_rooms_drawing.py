"""Writes the rooms into docs/architecture.md: `.venv/bin/python -P tests/golden/make_rooms_drawing.py`, after a move.

The folders are those of the tree, and what stands beside each is its line in the map of the package above it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "architecture.md"
ROOMS: Final = ("daemon", "workers", "storage", "streams", "ops")
"""In the order in which they may import each other."""
_DRAWING: Final = re.compile(r"(?<=<!-- rooms -->\n)```text\n.*?```\n", re.DOTALL)
_WIDTH: Final = 118


def text() -> str:
    """The page as it should be."""
    page = PAGE.read_text()
    assert _DRAWING.search(page), "no place for the rooms in docs/architecture.md"
    drawing = "\n".join(line for room in ROOMS for line in lines_of(room))
    return _DRAWING.sub(lambda _: f"```text\n{drawing}\n```\n", page)


def lines_of(room: str) -> Iterator[str]:
    """A room and its folders, a line each."""
    docstring = docstring_of(ROOT / room)
    yield f"{room + '/':<14}{docstring.partition('.')[0]}"
    folders = sorted(path.name for path in (ROOT / room).iterdir() if (path / "__init__.py").is_file())
    mapped = dict(re.findall(r"^([a-z_]+)/ +(.+)$", docstring, re.MULTILINE))
    assert sorted(mapped) == folders, f"{room}/__init__.py maps {sorted(mapped)}, there are {folders}"
    for name, words in mapped.items():
        line = f"  {name + '/':<12}{words}"
        assert len(line) <= _WIDTH, line
        yield line


def docstring_of(package: Path) -> str:
    """The docstring of a package."""
    return ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""


if __name__ == "__main__":
    PAGE.write_text(text())
