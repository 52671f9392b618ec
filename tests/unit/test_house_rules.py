"""The rules that no linter knows: file lengths, function lengths, package maps, layers of the folders."""

from __future__ import annotations

import ast
import re
import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("daemon", "streams", "workers", "storage", "ops")
SOURCES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 70
MAX_MEDIAN_LINES = 150
BARE_NAMES = frozenset({"utils", "util", "common", "helpers", "helper", "manager", "misc"})


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=shown)
def test_no_file_is_long(path: Path) -> None:
    assert lines_of(path) <= MAX_FILE_LINES


def test_files_are_short_on_the_median() -> None:
    assert statistics.median(lines_of(path) for path in SOURCES) <= MAX_MEDIAN_LINES


def test_functions_are_short() -> None:
    long = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    long.append(f"{shown(path)}:{node.lineno} {node.name} has {length} lines")
    assert not long


def test_every_module_says_what_it_is() -> None:
    mute = [shown(path) for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not mute


def test_each_package_maps_its_files() -> None:
    missing = []
    for init in (path for path in SOURCES if path.name == "__init__.py"):
        text = ast.get_docstring(ast.parse(init.read_text())) or ""
        for child in sorted(init.parent.iterdir()):
            package = (child / "__init__.py").is_file()
            if not (package or child.suffix == ".py") or child.name.startswith("__"):
                continue
            if "one file" not in text and not re.search(rf"\b{re.escape(child.stem)}\b", text):
                missing.append(f"{shown(init)} does not name {child.name}")
    assert not missing


def test_nothing_is_called_by_a_name_that_says_nothing() -> None:
    assert not [shown(path) for path in SOURCES if path.stem in BARE_NAMES or path.parent.name in BARE_NAMES]


def test_no_room_is_imported_under_its_bare_name() -> None:
    assert not [name for name in sys.modules if name in ROOMS]


def test_decoders_are_made_in_one_place() -> None:
    pattern = re.compile(r"msgspec\.convert\(|(json|msgpack)\.(Decoder\(|decode\(.*type=)")
    assert [shown(path) for path in SOURCES if pattern.search(path.read_text())] == ["ops/decoding.py"]


def test_nothing_executable_arrives_as_data() -> None:
    pattern = re.compile(r"\bimport pickle\b|\btorch\.load\(|yaml\.load\(|(?<![.\w])eval\(")
    assert not [shown(path) for path in SOURCES if pattern.search(path.read_text())]
