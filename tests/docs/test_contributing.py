"""CONTRIBUTING and the architecture page: commands that work, a fast suite that is one, a way through the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic.docs.pages import ROOT, blocks_of, code_of

from rftd.streams.events.catalogue import definitions

CONTRIBUTING = ROOT / "CONTRIBUTING.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
LINES = [line for block in blocks_of(CONTRIBUTING, "bash") for line in block.text.splitlines()]
UNMARKED = """
from pathlib import Path
from rftd.daemon.http.client.host import DaemonHost

def test_server(servers_folder): pass

def test_pair(pair): assert pair == {}

def test_late_server(request): request.getfixturevalue("servers_folder")

def test_daemon(tmp_path):
    with DaemonHost(tmp_path / "data", tmp_path / "log"): pass

def test_scene(scene): pass

def test_plain(): pass
"""


def pytest_of(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in LINES if " pytest " in line])
def test_a_run_of_some_tests_finds_some(line: str) -> None:
    words = line.split()
    assert words[:4] == [".venv/bin/python", "-P", "-m", "pytest"]
    collected = pytest_of("--collect-only", *words[4:])
    assert collected.returncode == 0, collected.stdout


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith(".venv") and " pytest " not in line])
def test_a_program_is_there(line: str) -> None:
    words = line.split()
    assert words[:2] == [".venv/bin/python", "-P"]
    assert len(words) == 3
    assert (ROOT / words[2]).is_file()


@pytest.mark.slow
def test_the_fast_suite_starts_neither_daemon_nor_server(tmp_path: Path) -> None:
    """What names a fixture of theirs is left out, and what starts one on another way fails with the mark it lacks."""
    (tmp_path / "test_unmarked.py").write_text(UNMARKED)
    paths = [str(ROOT / "tests")]
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(f"{conftest}\nsys.path[:0] = {paths}\n")
    done = pytest_of("--fast", "-c", str(ROOT / "pyproject.toml"), str(tmp_path))
    assert re.findall(r"^E +Failed: (.+)$", done.stdout, re.MULTILINE) == [
        "starts a server, and lacks the mark `servers`",
        "starts a daemon, and lacks the mark `e2e`",
    ]
    # What passed: test_pair on files, test_plain. Left out: test_pair on servers, both of test_scene, test_server.
    assert "2 failed, 2 passed, 4 deselected" in done.stdout


def test_make_runs_the_fast_suite() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ntest-fast:")[2].splitlines()[1]
    assert " --fast " in recipe
    assert "pytest" in recipe


def test_the_way_of_an_experience_has_fifteen_lines_and_true_events() -> None:
    text = ARCHITECTURE.read_text()
    assert [int(number) for number in re.findall(r"^(\d+)\. \*", text, re.MULTILINE)] == list(range(1, 16))
    known = {definition.name for definition in definitions()}
    events = {code for code in code_of(ARCHITECTURE) if re.fullmatch(r"[a-z]+\.[a-z_]+", code)}
    assert events
    assert events <= known


def test_the_drawing_has_the_numbers_of_the_list() -> None:
    drawing = (ROOT / "docs" / "experience.svg").read_text()
    shown: set[int] = set()
    for first, last in re.findall(r'class="name"[^>]*>(\d+)(?:–(\d+))?  ', drawing):
        shown.update(range(int(first), int(last or first) + 1))
    assert shown == set(range(1, 16))
