"""Outputs that cannot take what is written: a full disk, a reader that has gone, an encoding without the characters."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import TextIO

import pytest
import yaml
from synthetic.daemon.command_line import Rftd, Served
from synthetic.until import PATIENCE_S

from rftd.daemon.cli.cli import main
from rftd.daemon.cli.output.data import emit
from rftd.daemon.cli.settings import Settings


@pytest.mark.parametrize("words", [("explain", "RFTD-NET-001"), ("explain", "RFTD-NET-001", "--json"), ("--help",)])
def test_an_output_without_space_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(words) == 70
        err = capsys.readouterr().err
        assert "RFTD-OUT-001" in err
        assert "No space left on device" in err
        assert "RFTD-BUG" not in err
        monkeypatch.undo()
        _forget(full)


def _forget(file: TextIO) -> None:
    """Lets go of what could not be written."""
    with suppress(OSError):
        file.close()


def test_a_reader_that_has_gone_is_no_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["explain", "RFTD-NET-001"]) == 141
        monkeypatch.undo()
        _forget(pipe)


def test_an_argument_that_is_no_text_is_no_bug(rftd: Rftd) -> None:
    said = rftd("get", os.fsdecode(b"\xff"))
    assert said.status == 2
    assert "bytes that are no text in this locale" in said.err
    assert "LC_ALL=C.UTF-8" in said.err


def test_a_terminal_without_utf8_is_shown_what_it_can_show(served: Served) -> None:
    shown = {}
    for form in ("table", "json", "yaml"):
        words = [sys.executable, "-P", "-m", "rftd.daemon", "--server", served.url, "get", "small", "-o", form]
        environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
        done = subprocess.run(words, env=environ, capture_output=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        shown[form] = done.stdout.decode("ascii")
    assert "\\u2588" in shown["table"], "the curve"
    assert json.loads(shown["json"])["experiment"]["summary"]["name"] == "small"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("form", ["json", "jsonl", "yaml"])
def test_data_is_whole_in_every_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str, form: str) -> None:
    value = [{"text": "\u00fc \u2588 \U0001f600"}]
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    emit(value, Settings(output=form))
    text = written.getvalue().decode(encoding)
    read = yaml.safe_load if form == "yaml" else json.loads
    assert read(text) == (value if form != "jsonl" else value[0])
    assert ("\U0001f600" in text) == (encoding == "utf-8")
