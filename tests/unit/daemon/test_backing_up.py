"""A backup is whole under its name, or there is nothing under it."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from rftd.daemon import backing_up
from rftd.daemon.backing_up import back_up
from rftd.daemon.data_folder import DataFolder
from rftd.daemon.doctor.folder import check_folder
from rftd.ops.clock import SystemClock
from rftd.ops.errors import ConflictError, DataError, UsageError
from rftd.ops.ids import SystemIds
from rftd.streams.backends.sqlite.log import SqliteLog


@pytest.fixture
def source(tmp_path: Path) -> DataFolder:
    """A data folder with an embedded log, and secrets."""
    data = DataFolder(tmp_path / "data")
    data.prepare()

    async def make() -> None:
        await (await SqliteLog.open(data.log)).close()

    asyncio.run(make())
    (data.root / "owner.token").write_text("secret")
    (data.root / "tokens.json").write_text("{}")
    return data


def backup(source: DataFolder, target: Path) -> None:
    clock = SystemClock()
    asyncio.run(back_up(source, target, clock=clock, ids=SystemIds(clock)))


def partial(target: Path) -> DataFolder:
    return DataFolder(target.with_name(f".{target.name}.partial"))


def test_a_copy_is_a_folder_that_a_daemon_takes_without_the_owners_token(source: DataFolder, tmp_path: Path) -> None:
    target = tmp_path / "below" / "copy"
    backup(source, target)
    DataFolder(target).prepare()
    assert not (target / "owner.token").exists()
    assert (target / "tokens.json").stat().st_mode & 0o777 == 0o600
    assert not partial(target).root.exists()
    assert source.last_backup.read_text().endswith(str(target))


def test_doctor_names_the_newest_backup(source: DataFolder, tmp_path: Path) -> None:
    backup(source, tmp_path / "older")
    backup(source, tmp_path / "newer")
    findings = [finding for finding in check_folder(source.root, SystemClock()) if finding.check == "backup"]
    assert [finding.status for finding in findings] == ["ok"]
    assert str(tmp_path / "newer") in findings[0].what


def test_what_a_killed_backup_left_is_no_data_folder_and_is_replaced(source: DataFolder, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    half = partial(target)
    half.log.mkdir(parents=True)
    half.backing_up.touch()
    (half.log / "log.db").write_text("half a log")
    with pytest.raises(ConflictError, match="not whole"):
        half.prepare()
    backup(source, target)
    DataFolder(target).prepare()


def test_a_full_disk_leaves_nothing(source: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, target: Path) -> None:
        target.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(backing_up, "_copy_database", full)
    target = tmp_path / "copy"
    with pytest.raises(DataError, match="No space left") as error:
        backup(source, target)
    assert error.value.exit_status == 2
    assert not target.exists()
    assert not partial(target).root.exists()


@pytest.mark.parametrize("place", ["data/copy", "data", ".", "there", "file/copy"])
def test_a_target_that_cannot_be_one_is_refused(source: DataFolder, tmp_path: Path, place: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as error:
        backup(source, tmp_path / place)
    assert error.value.exit_status == 2


def test_something_else_under_the_unfinished_name_is_left_alone(source: DataFolder, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    partial(target).root.mkdir()
    with pytest.raises(UsageError, match="in the way"):
        backup(source, target)
    assert partial(target).root.exists()


def test_a_log_elsewhere_is_refused_by_name(source: DataFolder, tmp_path: Path) -> None:
    source.log_kind.write_text("elsewhere\n")
    with pytest.raises(UsageError, match="the log of this folder is not in it"):
        backup(source, tmp_path / "copy")
