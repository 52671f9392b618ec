"""Folders of this user alone are made closed, and are not taken where somebody else has a hand in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rftd.ops.errors import ConflictError
from rftd.ops.own_folder import (
    FolderAccess,
    check_sockets_folder,
    close_folder,
    make_own_folder,
    process_umask,
    tighten,
)


def test_a_folder_is_made_closed_and_taken_again(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    make_own_folder(folder)
    make_own_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o701, 0o770, 0o777])
def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ConflictError, match="open to other users") as raised:
        make_own_folder(folder)
    assert raised.value.where == str(folder)
    assert folder.stat().st_mode & 0o777 == mode


def test_a_link_and_a_file_are_no_folders(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(ConflictError, match="no folder"):
            make_own_folder(tmp_path / name)
        assert not tighten(tmp_path / name) or name == "file"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o700


def test_sockets_are_looked_for_where_nobody_else_writes(tmp_path: Path) -> None:
    check_sockets_folder(tmp_path / "missing")
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o755)
    check_sockets_folder(folder)
    folder.chmod(0o775)
    with pytest.raises(ConflictError, match="open to other users"):
        check_sockets_folder(folder)


def test_an_open_folder_gets_what_new_ones_have(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o777)
    before = os.umask(0o027)
    try:
        assert process_umask() == 0o027
        assert close_folder(folder)
        assert not close_folder(folder)
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o750
    assert not close_folder(tmp_path / "missing")


@pytest.mark.parametrize(("access", "mode"), [(FolderAccess.PRIVATE, "0700 0600"), (FolderAccess.GROUP, "0770 0660")])
def test_a_process_closes_what_it_will_make(tmp_path: Path, access: FolderAccess, mode: str) -> None:
    program = (
        "import os, sys; from rftd.ops.own_folder import *; os.chdir(sys.argv[1]);"
        f"close_to_others(FolderAccess({access.value!r})); os.mkdir('d'); open('f', 'w').close();"
        "print(*(f'{os.stat(n).st_mode & 0o777:04o}' for n in 'df'))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == mode
