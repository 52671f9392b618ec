"""`rftd backup` of a folder that a run writes to at full speed: the copy is whole, and goes on to the end."""

from __future__ import annotations

import asyncio
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rftd.daemon.cli.verbs.backup import _source
from rftd.daemon.cli.verbs.verify import files_of
from rftd.daemon.observe.doctor.folder import check_folder
from rftd.daemon.run.supervisor.run import Run
from rftd.daemon.serve.data_folder import DataFolder, LastBackup
from rftd.ops.clock import SystemClock
from rftd.ops.errors import ConflictError, DiskFullError, NotFoundError, UsageError
from rftd.ops.logs import logger
from rftd.storage.files import backup
from rftd.storage.files.backup import FILES, BackupManifest, back_up, manifest_of
from rftd.storage.files.survivors import of_checkpoints, of_log_folder
from rftd.streams.folds.spine import Status
from rftd.streams.log.lost_records import losses_of
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.verify.checker import verify

pytestmark = pytest.mark.anyio


def backing_up(data: DataFolder, target: Path, checkpoints: str = "newest") -> Any:
    return back_up(_source(data), target, checkpoints=checkpoints, release="1", clock=SystemClock())


@pytest.fixture
async def data(tmp_path: Path) -> DataFolder:
    """A data folder with an empty log."""
    folder = DataFolder(tmp_path / "data")
    folder.root.mkdir()
    await (await SqliteLog.open(folder.log)).close()
    return folder


def left_out_of(copy: Path) -> frozenset[str]:
    manifest = manifest_of(copy)
    assert manifest is not None
    return frozenset(manifest.left_out)


def put_back(copy: Path, job_dir: str) -> None:
    """The files of the backup at the places that the log names, and nothing else there."""
    shutil.rmtree(job_dir)
    shutil.copytree(copy / FILES, "/", dirs_exist_ok=True)


async def continued(copy: Path, experiment: Any, fake_world: Any, clock: Any, ids: Any) -> Run:
    """The experiment of a backup, driven to its end there."""
    log = await SqliteLog.open(copy / "log")
    executor = fake_world.executor(log, clock, ids)
    run = Run(
        log,
        experiment,
        executor,
        owner=ids.new(),
        clock=clock,
        ids=ids,
        logger=logger(),
        lost_after_s=0.5,  # the workers that the copied log has seen last
    )
    async with asyncio.timeout(60):
        await run.drive()
    report = await verify(log, look=partial(files_of, left_out=left_out_of(copy)))
    assert report.clean, report.findings
    await log.close()
    return run


async def test_what_a_run_writes_at_full_speed_is_copied_and_goes_on(
    tmp_path: Path, data: DataFolder, clock: Any, ids: Any, fake_world: Any
) -> None:
    log = await SqliteLog.open(data.log)
    spec = fake_world.spec(tmp_path)
    experiment = await fake_world.submitted(log, spec, clock, ids)
    executor = fake_world.executor(log, clock, ids)
    run = Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger())
    copies = [tmp_path / f"copy{number}" for number in range(2)]
    manifests: list[BackupManifest] = []
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        driving = tasks.create_task(run.drive())
        for copy, version in zip(copies, (1, 5), strict=True):
            while run.state.spine.version < version:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
            manifests.append(await backing_up(data, copy))
        await driving
    assert run.state.spine.status is Status.COMPLETED
    await log.close()
    ends = [sum(head.next_offset for head in manifest.heads) for manifest in manifests]
    assert ends == sorted(ends)
    assert ends[0] < ends[-1], "the run went on beside the copies"

    for copy, manifest in zip(copies, manifests, strict=True):
        put_back(copy, spec.job_dir)
        view = await SqliteLog.open(copy / "log")
        assert {head.next_offset for head in manifest.heads} == {m.next_offset for m in (await view.heads()).values()}
        report = await verify(view, look=partial(files_of, left_out=left_out_of(copy)))
        assert report.clean, report.findings
        assert await losses_of(view, [*of_log_folder(copy / "log"), *of_checkpoints(spec, experiment)]) == []
        await view.close()
        assert (await continued(copy, experiment, fake_world, clock, ids)).state.spine.status is Status.COMPLETED


async def test_what_is_younger_than_the_backup_is_named(
    tmp_path: Path, data: DataFolder, clock: Any, ids: Any, fake_world: Any
) -> None:
    log = await SqliteLog.open(data.log)
    spec = fake_world.spec(tmp_path)
    experiment = await fake_world.submitted(log, spec, clock, ids)
    await backing_up(data, tmp_path / "copy")
    run = Run(
        log, experiment, fake_world.executor(log, clock, ids), owner=ids.new(), clock=clock, ids=ids, logger=logger()
    )
    async with asyncio.timeout(60):
        await run.drive()
    await log.close()
    older = await SqliteLog.open(tmp_path / "copy" / "log")
    lost = await losses_of(older, of_checkpoints(spec, experiment))
    assert any("was acknowledged and is gone" in loss.what and "global_step" in loss.what for loss in lost)
    await older.close()


async def test_secrets_and_what_others_write_stay_out(tmp_path: Path, data: DataFolder) -> None:
    (data.root / "owner.token").write_text("rftd_secret")
    (data.root / "endpoint.json").write_text("{}")
    data.tokens.write_text("[]")
    data.archives.mkdir()
    (data.archives / "a.rftd").write_bytes(b"archive")
    await backing_up(data, tmp_path / "copy")
    copied = {path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*")}
    assert copied == {"archives", "archives/a.rftd", "backup.json", FILES, "log", "log/log.db", "log/log.heads"} | {
        "tokens.json"
    }
    DataFolder(tmp_path / "copy").prepare()
    manifest = msgspec.json.decode((tmp_path / "copy" / "backup.json").read_bytes(), type=BackupManifest)
    assert manifest.source == str(data.root)


async def test_a_backup_that_was_cut_off_is_refused_and_made_anew(
    tmp_path: Path, data: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """What a kill looks like from inside."""

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(backup, "_finish", killed)
        await backing_up(data, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    with pytest.raises(ConflictError, match="a backup that was cut off"):
        DataFolder(tmp_path / "copy.partial").prepare()
    await backing_up(data, tmp_path / "copy")
    assert not (tmp_path / "copy.partial").exists()
    with pytest.raises(ConflictError, match="the folder is not empty"):
        await backing_up(data, tmp_path / "copy")


async def test_two_backups_to_one_name_are_kept_apart(tmp_path: Path, data: DataFolder) -> None:
    async def second() -> None:
        with pytest.raises(ConflictError, match="another backup is being written there"):
            await backing_up(data, tmp_path / "copy")

    first = await asyncio.to_thread(backup._begin, tmp_path / "copy.partial")
    await second()
    os.close(first)
    await backing_up(data, tmp_path / "copy")


async def test_doctor_names_the_newest_backup(tmp_path: Path, data: DataFolder) -> None:
    def said() -> list[tuple[str, str]]:
        return [
            (found.status, found.what) for found in check_folder(data.root, SystemClock()) if found.check == "backup"
        ]

    assert said() == []
    last = LastBackup(created="2026-11-29T06:00:00Z", folder=str(tmp_path / "copy"))
    data.backed_up.write_bytes(msgspec.json.encode(last))
    assert said() == [("warn", f"made at {last.created}, and {last.folder} is not there")]
    await backing_up(data, tmp_path / "copy")
    assert said() == [("ok", f"made at {last.created}, in {last.folder}")]


async def test_a_full_disk_leaves_nothing_that_looks_whole(
    tmp_path: Path, data: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backup, "_copy_folder", full)
    with pytest.raises(DiskFullError, match="no space for the backup"):
        await backing_up(data, tmp_path / "copy")
    assert os.listdir(tmp_path) == ["data"]


@pytest.mark.parametrize("marker", ["import.pending", "backup.pending"])
async def test_a_folder_that_is_not_whole_makes_no_backup(tmp_path: Path, data: DataFolder, marker: str) -> None:
    (data.root / marker).write_text("of something")
    with pytest.raises(ConflictError, match="this folder is not whole"):
        await backing_up(data, tmp_path / "copy")
    assert os.listdir(tmp_path) == ["data"]


async def test_bad_targets_are_refused(tmp_path: Path, data: DataFolder) -> None:
    with pytest.raises(UsageError, match="hold each other"):
        await backing_up(data, data.root / "copy")
    with pytest.raises(UsageError, match="hold each other"):
        await backing_up(data, data.root.parent)
    (tmp_path / "copy.partial").mkdir()
    (tmp_path / "copy.partial" / "mine").touch()
    with pytest.raises(ConflictError, match="no backup that was cut off"):
        await backing_up(data, tmp_path / "copy")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        await backing_up(data, tmp_path / "file" / "copy")
    with pytest.raises(NotFoundError, match="no event log"):
        await backing_up(DataFolder(tmp_path / "nothing"), tmp_path / "other")
