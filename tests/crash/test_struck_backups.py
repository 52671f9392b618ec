"""`rftd backup` that is killed at any moment, or whose disk is full: the copy is whole or has no name."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene
from synthetic.faults.nth_call import strike_each
from synthetic.faults.small_volume import small_volume

from rftd.daemon.cli.verbs.backup import _source
from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.clock import SystemClock
from rftd.ops.errors import ConflictError, DiskFullError
from rftd.storage.files.backup import FILES, MANIFEST, UNFINISHED, back_up

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataFolder]:
    """The folder of a daemon that has trained one experiment and was stopped."""
    scene = Scene(tmp_path_factory.mktemp("backed_up"))
    with scene.host:
        name = scene.submit(EXPERIMENT, *SHORT)
        assert scene.until_ended(name).experiment.summary.state == "completed"
    yield scene.data


def make(data: DataFolder, target: Path) -> None:
    asyncio.run(back_up(_source(data), target, checkpoints="newest", release="1", clock=SystemClock()))


def content(folder: Path) -> dict[str, str]:
    """The digest of every file but the manifest, which has the time."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("how", ["kill", "full"])
def test_a_struck_backup_is_whole_or_has_no_name_and_can_be_made_again(
    tmp_path: Path, data: DataFolder, how: str
) -> None:
    make(data, tmp_path / "model")
    expected = content(tmp_path / "model")
    assert any(path.startswith(f"{FILES}/") for path in expected)
    target, partial = tmp_path / "copy", tmp_path / "copy.partial"

    def prepare() -> None:
        for folder in (target, partial):
            shutil.rmtree(folder, ignore_errors=True)

    def work() -> None:
        try:
            make(data, target)
        except DiskFullError as error:
            raise OSError(errno.ENOSPC, str(error)) from error

    def check(number: int) -> None:
        if target.exists():
            assert content(target) == expected, number
            assert (target / MANIFEST).exists(), number
            return
        if (partial / UNFINISHED).exists():
            with pytest.raises(ConflictError, match="a backup that was cut off"):
                DataFolder(partial).prepare()
        elif partial.exists() and any(partial.iterdir()):
            with pytest.raises(ConflictError, match="a whole backup, of a process that ended right before"):
                make(data, target)
            partial.rename(target)
            assert content(target) == expected, number
            return
        make(data, target)
        assert content(target) == expected, number
        assert not partial.exists(), number

    assert strike_each(prepare, work, check, how) > 20


def test_a_really_full_disk_leaves_nothing_and_says_so(tmp_path: Path, data: DataFolder) -> None:
    make(data, tmp_path / "model")
    expected = content(tmp_path / "model")
    needed_bytes = sum(path.stat().st_blocks * 512 for path in (tmp_path / "model").rglob("*"))
    with small_volume(tmp_path / "small", 3 * needed_bytes) as volume:
        target = volume.folder / "copy"
        refused = 0
        for free_bytes in range(0, 2 * needed_bytes, needed_bytes // 24):
            volume.fill(free_bytes=free_bytes)
            try:
                make(data, target)
            except DiskFullError as error:
                refused += 1
                assert "no space for the backup" in error.what, error
                assert os.listdir(volume.folder) == ["ballast"], free_bytes
            else:
                assert content(target) == expected
                shutil.rmtree(target)
        assert 20 < refused < 48, "from too little space to enough"
