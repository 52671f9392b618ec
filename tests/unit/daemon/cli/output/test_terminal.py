"""Text that fits a terminal, tables that leave out columns, ids that are as short as they can be."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from synthetic.daemon.terminal import Terminal
from synthetic.daemon.terminal import drawn as drawn_lines
from synthetic.until import PATIENCE_S

from rftd.daemon.cli.output.quantity import lasting, short, shorts
from rftd.daemon.cli.output.table import Page, table
from rftd.daemon.cli.output.terminal import fitted, pasteable, plain


@settings(deadline=None)
@given(st.text(), st.integers(4, 60))
def test_no_line_is_wider_and_nothing_is_lost(text: str, width: int) -> None:
    shown = fitted(text, width)
    assert all(cell_len(line) <= max(width, 2) for line in shown.split("\n"))
    assert "".join(shown.split()) == "".join(plain(text).split())


def test_lines_break_between_words_and_long_words_behind_a_slash() -> None:
    assert fitted("  fix: one two three", 12) == "  fix: one\n    two\n    three"
    assert fitted("short", 12) == "short"
    assert fitted("/folder/other/file", 10) == "/folder/\n  other/\n  file"
    assert fitted("code  the meaning of it", 14, indent=6) == "code  the\n      meaning\n      of it"
    assert fitted("x" * 9, 4) == "xxxx\n  xx\n  xx\n  x"


def test_a_command_to_be_pasted_is_broken_between_its_options_only() -> None:
    command = "SECRET=/a/very/long/path/of/a/file rftd serve --data d --kafka 127.0.0.1:1"
    assert pasteable("next: ", command, 80) == f"next: {command}"
    shown = pasteable("next: ", command, 40)
    assert shown.split("\n") == [
        "next:",
        "  SECRET=/a/very/long/path/of/a/file \\",
        "    rftd serve \\",
        "    --data d \\",
        "    --kafka 127.0.0.1:1",
    ]
    assert shown.replace("\\\n", "").split()[1:] == command.split()


def test_a_page_breaks_a_long_path_behind_a_slash() -> None:
    output = io.StringIO()
    lines: list[tuple[str, Text | str]] = [
        ("folder", "/home/me/checkpoints/first/mine"),
        ("why", Text("a b /c", style="red")),
    ]
    Console(file=output, width=36, force_terminal=True, color_system=None).print(Page(lines))
    shown = [line.rstrip() for line in output.getvalue().splitlines()]
    assert shown == ["folder        /home/me/checkpoints/", "              first/mine", "why           a b /c"]


def test_what_a_terminal_obeys_is_shown_as_python_writes_it() -> None:
    assert fitted("a\x1b[2Jb\rc\x00", 80) == "a\\x1b[2Jb\\rc\\x00"


def test_ids_are_short_only_where_their_beginning_tells_them_apart() -> None:
    by_chance, by_time = str(UUID(int=7 << 64, version=5)), "01a214f4-9c9b-7000-a4c6-2c5e76bf7048"
    assert short(by_chance) == by_chance[:8]
    assert short(by_time) == by_time
    assert shorts(["0123456789", "0123456799"]) == ["012345678", "012345679"]
    assert shorts(["01234567-89", "11234567-89"]) == ["01234567", "11234567"]
    assert shorts(["same", "same"]) == ["same", "same"]
    assert shorts([]) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (59.4, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (90_000, "1 d 1 h")],
)
def test_a_time_span_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert lasting(seconds) == text


def drawn(width: int) -> list[str]:
    output = io.StringIO()
    rows = [("019a0000", "running", "a text that may be folded wherever it has to be", "3")]
    made = table(
        ("ID", "STATE", "TEXT", "N"), rows, right=("N",), whole=("ID", "STATE"), width=width, first_to_go=("STATE", "N")
    )
    Console(file=output, width=width).print(made)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def test_columns_go_before_an_id_is_folded() -> None:
    assert drawn(80)[0].split() == ["ID", "STATE", "TEXT", "N"]
    assert drawn(36)[0].split() == ["ID", "TEXT", "N"]
    assert drawn(31)[0].split() == ["ID", "TEXT"]
    for width in (80, 36, 31):
        assert drawn(width)[1].startswith("019a0000  ")
        assert max(map(len, drawn(width))) <= width


LOGS = """
from rftd.daemon.cli.output.terminal import fitting_errors
from rftd.ops.logs import configure, logger
configure(fit=fitting_errors, as_json=False)
logger(role="daemon").info("snapshot.used", path="/a/folder" * 30, records=7)
"""


def test_the_log_of_a_daemon_fits_its_terminal_and_is_whole_in_a_file(tmp_path: Path) -> None:
    program = (sys.executable, "-P", "-c", LOGS)
    lines = drawn_lines(Terminal(60, 24).raw(program, cwd=tmp_path, environ=dict(os.environ)))
    assert max(map(cell_len, lines)) <= 60
    assert "".join(lines).replace(" ", "").count("/a/folder") == 30
    piped = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert "/a/folder" * 30 in piped.stderr
