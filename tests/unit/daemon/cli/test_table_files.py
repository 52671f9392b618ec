"""The files of database tables: carried by exports and backups, and removed by `rftd gc` once nobody reads them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace
from synthetic.daemon.command_line import Rftd
from synthetic.log import synthetic_run
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.serve.data_folder import DataFolder
from rftd.daemon.serve.log_identity import identity_of
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.storage.files.folder_owner import write_owner
from rftd.storage.files.survivors import LossesFile
from rftd.storage.files.table_files import table_folder, table_name
from rftd.streams.events.experiment import LostHead
from rftd.streams.log.lost_records import Loss
from rftd.streams.spec.spec import ExperimentSpec, TasksetSpec
from rftd.streams.sqlite.log import SqliteLog

ROWS = b'{"question":"1+1=","answer":"2"}\n'
USUAL = synthetic_run.spec_of
NAME = table_name("tasks", hashlib.sha256(ROWS).hexdigest())


class Reader:
    """A data folder whose one experiment, which has not ended, reads a table."""

    def __init__(self, folder: Path) -> None:
        self.folder = DataFolder(folder / "data")
        self.root = folder / "checkpoints"
        self.job = self.root / "p" / "busy"
        self.job.mkdir(parents=True)
        self.folder.root.mkdir()
        self.folder.log.mkdir()
        self.own = identity_of(self.folder, SystemIds(SystemClock()))
        self.table = table_folder(self.root, self.own.id) / NAME
        self.table.parent.mkdir(parents=True)
        self.table.write_bytes(ROWS)

    @property
    def options(self) -> tuple[str, ...]:
        return ("--data", str(self.folder.root))

    def spec(self, name: str, steps: int, job_dir: str) -> ExperimentSpec:
        """The specification of the synthetic run, with the table as its taskset."""
        spec = USUAL(name, steps, job_dir)
        stage = replace(spec.stages[1], taskset=TasksetSpec(name="tasks", path=str(self.table)))
        taskset = {"storage_type": "file", "path": str(self.table)}
        config = {"checkpoint_root_dir": str(self.root), "buffer": {"explorer_input": {"taskset": taskset}}}
        return replace(spec, stages=(spec.stages[0], stage), config=config)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    reader = Reader(tmp_path / "one")
    run = SyntheticRun(Recorder(), name="busy", job_dir=str(reader.job))
    with monkeypatch.context() as patched:
        patched.setattr(synthetic_run, "spec_of", reader.spec)
        run.begin()

    async def fill() -> None:
        log = await SqliteLog.open(reader.folder.log)
        await log.append(run.recorder.drafts)
        await log.close()

    asyncio.run(fill())
    identity_of(reader.folder, SystemIds(SystemClock()))
    return reader


def exported(rftd: Rftd, reader: Reader) -> str:
    file = str(reader.folder.root.parent / "busy.rftd")
    said = rftd("export", "busy", "--to", file, *reader.options)
    assert said.status == 0, said.err
    return file


def test_an_import_brings_the_table_among_those_of_its_own_log(rftd: Rftd, reader: Reader, tmp_path: Path) -> None:
    file = exported(rftd, reader)
    shutil.rmtree(reader.root)
    there = DataFolder(tmp_path / "two")
    said = rftd("import", file, "--json", "--data", str(there.root))
    assert said.status == 0, said.err
    assert json.loads(said.out)["missing"] == ["/model"]
    (table,) = there.root.rglob(NAME)
    own = identity_of(there, SystemIds(SystemClock()))
    assert table == there.root / "imported" / ".tables" / own.id / NAME
    assert table.read_bytes() == ROWS
    again = rftd("import", file, "--json", "--data", str(there.root))
    assert (again.status, json.loads(again.out)["files"]) == (0, 0), again.err

    os.utime(table, ns=(0, 0))
    assert rftd("gc", "--data", str(there.root)).status == 0
    assert table.exists(), "the imported experiment reads it"


def test_a_mapped_table_goes_below_the_new_root(rftd: Rftd, reader: Reader, tmp_path: Path) -> None:
    there = DataFolder(tmp_path / "two")
    moved = f"{reader.root}={tmp_path}/new"
    said = rftd("import", exported(rftd, reader), "--map", moved, "--json", "--data", str(there.root))
    assert said.status == 0, said.err
    own = identity_of(there, SystemIds(SystemClock()))
    assert (tmp_path / "new" / ".tables" / own.id / NAME).read_bytes() == ROWS
    assert json.loads(said.out)["missing"] == ["/model"]


def test_a_table_that_is_gone_or_another_is_named(rftd: Rftd, reader: Reader, tmp_path: Path) -> None:
    file = str(tmp_path / "busy.rftd")
    reader.table.write_bytes(b"{}\n")
    changed = rftd("export", "busy", "--to", file, *reader.options)
    assert changed.status == 70, changed
    assert "do not match its name" in changed.err
    reader.table.unlink()
    gone = rftd("export", "busy", "--to", file, *reader.options)
    assert gone.status == 3, gone
    assert str(reader.table) in gone.err


def test_a_backup_holds_the_table(rftd: Rftd, reader: Reader, tmp_path: Path) -> None:
    said = rftd("backup", str(tmp_path / "copy"), *reader.options)
    assert said.status == 0, said.err
    kept = tmp_path / "copy" / "experiments" / reader.table.relative_to("/")
    assert kept.read_bytes() == ROWS


def test_gc_removes_a_table_that_nobody_reads(rftd: Rftd, reader: Reader) -> None:
    unread = reader.table.with_name(table_name("old", "ab" * 32))
    unread.write_bytes(ROWS)
    assert str(unread) not in rftd("gc", *reader.options).out, "a submission may be about to name it"
    for path in (unread, reader.table):
        os.utime(path, ns=(0, 0))
    shown = rftd("gc", "--dry-run", "--json", *reader.options)
    assert [(item["path"], item["why"]) for item in json.loads(shown.out)["items"]] == [
        (str(unread), "no experiment reads it")
    ]
    assert unread.exists()
    assert rftd("gc", "busy", *reader.options).status == 0
    assert unread.exists(), "one experiment was named"
    assert rftd("gc", *reader.options).status == 0
    assert (unread.exists(), reader.table.exists()) == (False, True)


def test_gc_keeps_tables_where_the_log_lost_records(rftd: Rftd, reader: Reader) -> None:
    unread = reader.table.with_name(table_name("old", "ab" * 32))
    unread.write_bytes(ROWS)
    os.utime(unread, ns=(0, 0))
    head = LostHead("rftd.experiments", 0, 900, b"chain", end=5, by="the tables' positions")
    LossesFile(reader.folder.losses).write([Loss(head)])
    said = rftd("gc", *reader.options)
    assert unread.exists(), said
    assert "lost records" in said.err, said


def test_gc_of_a_copy_leaves_the_folders_of_the_original(rftd: Rftd, reader: Reader) -> None:
    """The original went on: its newer checkpoints are named by no event of the copy."""
    write_owner(reader.job, reader.own)
    copy = reader.folder.root.with_name("copy")
    shutil.copytree(reader.folder.root, copy)
    newer = reader.job / "global_step_9"
    newer.mkdir()
    unread = reader.table.with_name(table_name("newer", "ab" * 32))
    unread.write_bytes(ROWS)
    for path in (newer, unread):
        os.utime(path, ns=(0, 0))
    said = rftd("gc", "--data", str(copy))
    assert said.status == 0, said
    assert newer.exists()
    assert unread.exists()
    assert "belongs to another log" in said.err, said
    assert rftd("gc", *reader.options).status == 0
    assert not newer.exists()
