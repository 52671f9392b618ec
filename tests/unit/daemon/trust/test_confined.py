"""Folders judged while their files change."""

from __future__ import annotations

from pathlib import Path

import pytest

from rftd.daemon.trust import allowances


def test_a_file_deleted_while_its_folder_is_judged_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path.resolve()
    folder = root / "checkpoints"
    folder.mkdir()
    monkeypatch.setattr(allowances, "_inner_paths", lambda real: [real, f"{real}/deleted.tmp"])
    assert allowances.confined(str(folder), (str(root),)) == str(folder)


def test_a_link_to_nothing_within_a_folder_is_refused(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    (root / "link").symlink_to(root / "nothing")
    assert allowances.confined(str(root), (str(root),)) is None
