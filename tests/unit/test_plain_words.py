"""The house is written in words that a stranger knows: local names, docstrings and comments, names of tests.

Measured on projects of the field: 0 to 6 generic locals of 1,000 assigned ones, 26 to 58 pronouns in 1,000 words.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[2]
ROOMS: Final = ("daemon", "streams", "workers", "storage", "ops")
SOURCES: Final = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))

GENERIC: Final = frozenset(
    """each found place part known given own made left asked said told seen held kept taken some one other others rest
    there here those these what gone had brought drew wanted written""".split()  # noqa: SIM905
)
VAGUE: Final = frozenset(
    "result results item items value values data entry entries res obj thing things".split()  # noqa: SIM905
)
PRONOUNS: Final = frozenset(
    """that which what whatever who whom whose whoever those these it its itself they them their theirs this one ones
    such same""".split()  # noqa: SIM905
)
MAX_GENERIC_PER_1000: Final = 25
MAX_VAGUE_PER_1000: Final = 60
MAX_PRONOUNS_PER_1000: Final = 60
FEWEST_NAMES: Final = 50
MIN_DOCUMENTED: Final = 0.66
"""The share of public definitions with a docstring when the words were first measured."""
MAX_TEST_NAME: Final = 80


class Words(NamedTuple):
    """Counts of one file."""

    names: int
    generic: int
    vague: int
    words: int
    pronouns: int


def words_of(path: Path) -> Words:
    text = path.read_text()
    tree = ast.parse(text)
    names = Counter(assigned(tree))
    words = prose(tree, text)
    return Words(
        names.total(),
        sum(count for name, count in names.items() if name in GENERIC),
        sum(count for name, count in names.items() if name in VAGUE),
        len(words),
        sum(word in PRONOUNS for word in words),
    )


def assigned(tree: ast.AST) -> Iterator[str]:
    """Names bound inside functions, once for each function around them."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id.strip("_")


def prose(tree: ast.AST, text: str) -> list[str]:
    """Words of docstrings and full-line comments, without code in backticks."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)]
    texts += [line.strip().lstrip("#") for line in text.splitlines() if line.strip().startswith("# ")]
    return re.findall(r"[a-z']+", re.sub(r"`[^`]*`", " ", " ".join(texts)).lower())


def folder_of(path: Path) -> str:
    names = path.relative_to(ROOT).parts
    return "/".join(names[:2]) if len(names) > 2 else names[0]


FOLDERS: Final = sorted({folder_of(path) for path in SOURCES})


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_is_written_in_plain_words(folder: str) -> None:
    counts = [words_of(path) for path in SOURCES if folder_of(path) == folder]
    total = Words(*(sum(column) for column in zip(*counts, strict=True)))
    if total.names < FEWEST_NAMES:
        return
    worst = sorted(zip(counts, (str(path) for path in SOURCES if folder_of(path) == folder), strict=True))[-3:]
    assert 1000 * total.generic <= MAX_GENERIC_PER_1000 * total.names, worst
    assert 1000 * total.vague <= MAX_VAGUE_PER_1000 * total.names, worst
    assert 1000 * total.pronouns <= MAX_PRONOUNS_PER_1000 * total.words, worst


def test_public_definitions_have_docstrings() -> None:
    documented = public = 0
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
                public += 1
                documented += ast.get_docstring(node) is not None
    assert documented >= MIN_DOCUMENTED * public


def test_names_of_tests_are_short() -> None:
    long = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if function and node.name.startswith("test_") and len(node.name) > MAX_TEST_NAME:
                long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not long
