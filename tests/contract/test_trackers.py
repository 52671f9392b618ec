"""Every kind of tracker shows what `rftd steps` shows, each point once, whenever its process dies."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import pytest
from synthetic.tracking.tracked import FILES, Deaths, expected, follow, follow_and_die, shown_by, written

from rftd.ops.errors import ConflictError, DataError
from rftd.streams.log.log import EventLog
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.stage_parts import TrackerSpec
from rftd.workers.tracking.cursor import CursorFile
from rftd.workers.tracking.kept_file import KeptFile

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", FILES)]


async def test_what_is_shown_is_what_the_tables_have(kind: str, log: EventLog, tmp_path: Path) -> None:
    run = written(tmp_path)
    await log.append(run.recorder.drafts)
    await follow(log, run, TrackerSpec(kind=kind))
    shown = shown_by(kind, tmp_path / "monitor" / kind)
    assert shown == await expected(kind, run, log)
    assert len(shown) > 70


async def test_a_follower_that_dies_twenty_times_loses_and_doubles_nothing(
    kind: str, log: EventLog, tmp_path: Path
) -> None:
    run = written(tmp_path)
    deaths = Deaths(random.Random(3).sample(range(1, 60), 20))
    await follow_and_die(log, run, TrackerSpec(kind=kind), deaths)
    assert deaths.count == 20
    assert shown_by(kind, tmp_path / "monitor" / kind) == await expected(kind, run, log)
    assert CursorFile(tmp_path, kind, str(run.id)[:8]).read().ended


async def test_an_ended_run_is_followed_once(kind: str, tmp_path: Path) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    count = await follow(log, run, TrackerSpec(kind=kind))
    assert await follow(log, run, TrackerSpec(kind=kind)) == count
    assert shown_by(kind, tmp_path / "monitor" / kind) == await expected(kind, run, log)


async def test_two_processes_never_write_one_folder(kind: str, tmp_path: Path) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    held = CursorFile(tmp_path, kind, str(run.id)[:8])
    held.take()
    with pytest.raises(ConflictError, match="another process"):
        await follow(log, run, TrackerSpec(kind=kind))
    held.release()
    await follow(log, run, TrackerSpec(kind=kind))


async def test_a_file_that_lost_its_end_is_named(kind: str, tmp_path: Path) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts[:200])
    await follow(log, run, TrackerSpec(kind=kind))
    (path,) = (path for path in (tmp_path / "monitor" / kind).rglob("*") if path.is_file() and "trainer" in str(path))
    path.write_bytes(path.read_bytes()[:-5])
    await log.append(run.recorder.drafts[200:])
    with pytest.raises(DataError, match=r"has \d+ bytes, and had \d+"):
        await follow(log, run, TrackerSpec(kind=kind))


async def test_a_damaged_cursor_is_named(kind: str, tmp_path: Path) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    file = CursorFile(tmp_path, kind, str(run.id)[:8])
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(b"\xc1 no cursor")
    with pytest.raises(DataError, match="cursor of a tracker is damaged"):
        await follow(log, run, TrackerSpec(kind=kind))


async def test_one_run_has_explorer_and_trainer(kind: str, tmp_path: Path) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    await follow(log, run, TrackerSpec(kind=kind, single_run=True))
    folder = tmp_path / "monitor" / kind
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 1
    shown = [figure._replace(run="") for figure in shown_by(kind, folder)]
    assert sorted(shown) == sorted(await expected(kind, run, log, single_run=True))


async def test_a_removed_folder_is_written_once_more(kind: str, tmp_path: Path) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)

    def removed(point: str) -> None:
        if point == "tracker.before_cursor":
            shutil.rmtree(tmp_path / "monitor")

    with pytest.raises(DataError, match="was removed while it ran"):
        await follow(log, run, TrackerSpec(kind=kind), removed)
    await follow(log, run, TrackerSpec(kind=kind))
    assert shown_by(kind, tmp_path / "monitor" / kind) == await expected(kind, run, log)


async def test_a_full_disk_is_waited_out(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    append = KeptFile.append
    calls = 0

    def full(file: KeptFile, data: bytes) -> None:
        nonlocal calls
        calls += 1
        append(file, data[:20])
        if 10 < calls < 60:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(file, data[20:])

    monkeypatch.setattr(KeptFile, "append", full)
    await follow(log, run, TrackerSpec(kind=kind))
    assert calls > 60
    assert shown_by(kind, tmp_path / "monitor" / kind) == await expected(kind, run, log)
