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

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70
MAX_MEDIAN_LINES = 150
MAX_RELEASE_BYTES = 6000
MAX_PACKED_PER_1000 = 1.0
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


def test_a_release_is_told_in_few_lines() -> None:
    """A merge that brought back what an older branch says of it shows here: take the page of the main branch."""
    _, *releases = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")
    sizes = {text.partition("\n")[0]: len(text.encode()) for text in releases}
    assert not {release: size for release, size in sizes.items() if size > MAX_RELEASE_BYTES}


def test_functions_are_short() -> None:
    long = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    long.append(f"{shown(path)}:{node.lineno} {node.name} has {length} lines")
    assert not long


def test_one_statement_does_one_thing() -> None:
    """Hardly any statement packs several assignments: `a, b = x, y`."""
    packed = []
    statements = 0
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            statements += isinstance(node, ast.stmt)
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Tuple)
                and isinstance(node.value, ast.Tuple)
            ):
                packed.append(f"{shown(path)}:{node.lineno} {ast.unparse(node)}")
    assert 1000 * len(packed) / statements <= MAX_PACKED_PER_1000, packed


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


SECTIONS = frozenset(
    {"AuxiliaryModel", "Buffer", "Explorer", "Model", "ReplayBuffer", "Service", "Stage", "Taskset", "Trainer"}
)
"""Sections of the experiment file are called as it calls them, and what they describe has the same name."""


def imports_of(tree: ast.Module, modules: set[str]) -> set[str]:
    """The project's modules that a module imports: at its top, in functions, and for types alone."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} & modules or {node.module} & modules
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names} & modules
    return names


def test_no_modules_import_each_other_even_late_or_for_types() -> None:
    trees = {}
    for path in SOURCES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        trees[".".join(("rftd", *(parts[:-1] if parts[-1] == "__init__" else parts)))] = ast.parse(path.read_text())
    imports = {module: imports_of(tree, set(trees)) for module, tree in trees.items()}
    assert sum(map(len, imports.values())) > len(imports), "few imports were read"
    # Modules importing nothing that is left are taken away in turn; a circle stays.
    while free := {module for module, names in imports.items() if not names}:
        imports = {module: names - free for module, names in imports.items() if module not in free}
    importers = {name for names in imports.values() for name in names}
    assert not {module: sorted(names) for module, names in imports.items() if module in importers}


def test_a_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(shown(path))
    twice = {name: found for name, found in places.items() if len(found) > 1 and name not in SECTIONS}
    assert not twice


KAFKA_IN_DAEMON = ("cli/cli.py", "cli/log_option.py", "cli/verbs/demo.py", "cli/verbs/stack.py", "demo/", "stack/")
"""`rftd stack` and the demo start a broker; `--kafka` is the short form of one backend's URL."""


def test_a_stream_backend_is_known_in_one_place() -> None:
    """Adding a backend is its file and its line in the table: the daemon asks the backend of a URL and names none."""
    imports = re.compile(r"rftd\.streams\.kafka")
    outside = [path for path in SOURCES if "streams/kafka" not in shown(path)]
    named = [shown(path) for path in outside if imports.search(path.read_text())]
    assert named == ["streams/log/backend.py"]
    daemon = [path for path in outside if shown(path).startswith("daemon/")]
    talkative = [
        f"{shown(path)} says {word}"
        for path in daemon
        if not shown(path).removeprefix("daemon/").startswith(KAFKA_IN_DAEMON)
        for word in said_in_code(path)
        if "kafka" in word.lower()
    ]
    assert not talkative


def said_in_code(path: Path) -> list[str]:
    """Every name and text of a file, but for what is documentation: docstrings (help texts too) and comments."""
    tree = ast.parse(path.read_text())
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            found.append(node.value)
        found += [
            str(getattr(node, field)) for field in ("id", "attr", "arg", "module", "name") if hasattr(node, field)
        ]
    return found
