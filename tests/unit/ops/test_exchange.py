"""Two folders change places; where that cannot be, nothing happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from rftd.ops import exchange as module
from rftd.ops.exchange import exchange


def folder(path: Path, name: str) -> Path:
    (path / name).mkdir()
    (path / name / name).touch()
    return path / name


def test_two_folders_change_places(tmp_path: Path) -> None:
    first, second = folder(tmp_path, "first"), folder(tmp_path, "second")
    assert exchange(first, second)
    assert [each.name for each in first.iterdir()] == ["second"]
    assert [each.name for each in second.iterdir()] == ["first"]


@pytest.mark.parametrize("missing", ["first", "second"])
def test_one_that_is_missing_is_an_error_and_nothing_happens(tmp_path: Path, missing: str) -> None:
    there = folder(tmp_path, "second" if missing == "first" else "first")
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "first", tmp_path / "second")
    assert list(tmp_path.iterdir()) == [there]


def test_a_system_that_cannot_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = folder(tmp_path, "first"), folder(tmp_path, "second")
    monkeypatch.setattr(module, "_renameat2", lambda: None)
    assert not exchange(first, second)
    monkeypatch.setattr(module, "_renameat2", lambda: lambda *_: -1)
    monkeypatch.setattr("ctypes.get_errno", lambda: 22)
    assert not exchange(first, second)
    assert [each.name for each in first.iterdir()] == ["first"]
