"""The documents, cut into what can be run or looked up."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w.]+\.\w+)\n")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """One fenced block; `file` is the name that its first line gives it."""

    page: Path
    language: str
    text: str
    file: str | None

    @property
    def place(self) -> str:
        return f"{self.page.name}: {self.text.strip().splitlines()[0][:60]}"


def blocks_of(page: Path, *languages: str) -> list[Block]:
    """The blocks of a page in these languages, in order."""
    found = []
    for language, text in _FENCE.findall(page.read_text()):
        if language in languages:
            named = _FILE.match(text)
            found.append(Block(page, language, text, named[1] if named else None))
    return found


def block_named(file: str) -> Block:
    """The one block that is the file of this name."""
    languages = ("yaml", "python", "toml", "sh")
    (found,) = (block for page in PAGES for block in blocks_of(page, *languages) if block.file == file)
    return found


def prose_of(page: Path) -> str:
    """The page without its blocks."""
    return _FENCE.sub("", page.read_text())


def code_of(page: Path) -> list[str]:
    """The texts between single back quotes in the prose."""
    return _CODE.findall(re.sub(r"\s*\n\s*", " ", prose_of(page)))


def links_of(page: Path) -> list[str]:
    """The targets of every link."""
    return _LINK.findall(prose_of(page))


def anchors_of(page: Path) -> set[str]:
    """The anchors that headings make, as GitHub writes them."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
