"""Folders opened to a command by a Python: those of Pythons alone, whatever path a stranger names."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

import pytest

from rftd.workers.workflows.sandbox.python_homes import python_homes


def test_an_environment_opens_itself_and_the_python_behind_its_link(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    behind = Path(sys.executable).resolve().parent.parent
    assert python_homes(python) == sorted([str(tmp_path / "env"), str(behind)])


def test_a_program_beside_other_files_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger allowed any command names a program whose grandparent is the root, or a folder of the owner."""
    (tmp_path / "secrets" / "bin").mkdir(parents=True)
    program = tmp_path / "secrets" / "bin" / "python"
    program.write_text("#!/bin/sh\n")
    assert python_homes(program) == []
    (tmp_path / "secrets" / "lib" / "python3.11").mkdir(parents=True)
    (tmp_path / "secrets" / "lib" / "python3.11" / "os.py").touch()
    assert python_homes(program) == [str(tmp_path / "secrets")]
    monkeypatch.setenv("HOME", str(tmp_path / "secrets"))
    assert python_homes(program) == []
    assert "/" not in python_homes(Path("/bin/python3"))
