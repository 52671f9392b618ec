"""A run by the keyboard: curves, groups and answers in a terminal of its own, and no line beyond any size of it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from synthetic.daemon.command_line import Served
from synthetic.daemon.served_daemon import served_daemon
from synthetic.until import PATIENCE_S

from rftd.daemon.cli.settings import Settings
from rftd.daemon.cli.verbs.keys_view import KeysView, ScreenLine, _fit
from rftd.daemon.http.client.client import Client
from rftd.ops.errors import UnreachableError


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The API over one complete run named `small`."""
    with served_daemon(tmp_path_factory.mktemp("keys")) as daemon:
        yield daemon


@pytest.fixture
def view(served: Served) -> Iterator[KeysView]:
    """The run by keys."""
    with Client(Settings(server=served.url), {}) as client:
        yield KeysView(client, "small")


def text_of(lines: list[ScreenLine]) -> str:
    return "\n".join(line.text for line in lines)


def chosen_in(lines: list[ScreenLine]) -> str:
    [line] = [line.text for line in lines if line.is_chosen]
    return line


def test_keys_lead_from_curves_to_groups_to_answers_and_back(view: KeysView) -> None:
    assert "small" in text_of(view.lines(100, 30))
    view.press("2")
    first = chosen_in(view.lines(100, 30))
    view.press("j")
    second = chosen_in(view.lines(100, 30))
    assert first != second
    view.press("k")
    view.press("k")
    assert chosen_in(view.lines(100, 30)) == first
    view.press("enter")
    assert "█" in text_of(view.lines(100, 30))
    view.press("esc")
    assert chosen_in(view.lines(100, 30)) == first
    view.press("3")
    assert "answers" in chosen_in(view.lines(100, 30))
    view.press("enter")
    assert "answer 1 of" in text_of(view.lines(100, 30))
    view.press("j")
    assert "answer 2 of" in text_of(view.lines(100, 30))
    view.press("space")
    view.press("b")
    view.press("?")
    assert "the run continues" in text_of(view.lines(100, 30))
    view.press("esc")
    assert "answer 2 of" in text_of(view.lines(100, 30))
    view.press("r")
    view.press("x")
    assert not view.press("q")


def test_no_line_is_wider_or_controls_the_terminal_at_any_size(view: KeysView) -> None:
    for keys in ("1", "2", "2j", "3", "?"):
        for key in keys:
            view.press(key)
        for width, height in ((1, 1), (8, 3), (40, 10), (300, 80)):
            lines = view.lines(width, height)
            assert len(lines) <= max(height, 1)
            assert all(cell_len(line.text) <= width and line.text.isprintable() for line in lines)
    assert cell_len(_fit("漢字" * 50 + "\x1b[31m\u202e", 21)) <= 21
    assert "\x1b" not in _fit("\x1b]0;title\x07", 80)


def test_a_daemon_that_left_keeps_the_view_with_the_reason(view: KeysView, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise UnreachableError("no daemon answers")

    before = view.lines(100, 30)
    monkeypatch.setattr(view, "_run", SimpleNamespace(page=away))
    view.renew()
    assert "not renewed: no daemon answers" in text_of(view.lines(100, 30))
    assert view.lines(100, 30)[0] == before[0]


def test_a_real_terminal_shows_and_leaves_by_keys(served: Served) -> None:
    main, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 110, 0, 0))
    command = [sys.executable, "-P", "-m", "rftd.daemon", "watch", "small", "--keys", "--server", served.url]
    environ = {**os.environ, "TERM": "xterm", "LANG": "C.UTF-8"}
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environ, start_new_session=True)
    os.close(child)
    try:
        for key, words in (("", "step"), ("2", "[curves]"), ("3", "task"), ("\r", "answer 1 of"), ("?", "quit;")):
            os.write(main, key.encode())
            until_shown(main, words)
        os.write(main, b"q")
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(main)
    refused = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)
    assert refused.returncode == 2
    assert "needs a terminal" in refused.stderr


def until_shown(terminal: int, words: str) -> None:
    """Returns once the terminal was sent these words."""
    drawn = ""
    deadline_s = time.monotonic() + PATIENCE_S
    while words not in drawn:
        assert time.monotonic() < deadline_s, drawn
        if select.select([terminal], [], [], 1.0)[0]:
            drawn += os.read(terminal, 65536).decode("utf-8", "replace")
