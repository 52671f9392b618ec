"""`rftd export` and `rftd import` on folders that no daemon uses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace
from synthetic.daemon.command_line import Rftd
from synthetic.log import synthetic_run
from synthetic.log.recorder import Recorder
from synthetic.log.scan_chain import scan_chain
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.errors import ConflictError
from rftd.streams.spec.spec import ExperimentSpec, LoraSpec, TasksetSpec, TrainerSpec
from rftd.streams.sqlite.lock_file import LockFile
from rftd.streams.sqlite.log import SqliteLog


def filled(root: Path, *runs: SyntheticRun) -> DataFolder:
    """A data folder with a log of these runs' recorder."""
    folder = DataFolder(root)

    async def fill() -> None:
        log = await SqliteLog.open(folder.log)
        await log.append(runs[0].recorder.drafts)
        await log.close()

    asyncio.run(fill())
    return folder


@pytest.fixture
def ended(tmp_path: Path) -> DataFolder:
    recorder = Recorder()
    return filled(
        tmp_path / "one", SyntheticRun(recorder, name="small").write(), SyntheticRun(recorder, name="other").write()
    )


@pytest.fixture
def running(tmp_path: Path) -> DataFolder:
    run = SyntheticRun(Recorder(), name="busy")
    run.begin()
    return filled(tmp_path / "running", run)


def test_out_of_one_folder_and_into_another(rftd: Rftd, ended: DataFolder, tmp_path: Path) -> None:
    file, data = str(tmp_path / "small.rftd"), str(tmp_path / "two")
    said = rftd("export", "small", "--to", file, "--json", "--data", str(ended.root))
    assert said.status == 0, said.err
    answer = json.loads(said.out)
    assert (answer["name"], answer["file"]) == ("small", file)
    assert any("left out" in note for note in answer["notes"]), "there are no files of a synthetic run"
    said = rftd("import", file, "--json", "--data", data)
    assert said.status == 0, said.err
    done = json.loads(said.out)
    assert (done["appended"], done["present"], done["tables_equal"]) == (answer["records"], 0, True)
    assert done["job_dir"] == f"{data}/imported/{answer['experiment']}"
    assert not DataFolder(Path(data)).importing.exists()
    again = rftd("import", file, "--data", data)
    assert again.status == 0
    assert "0 records appended" in again.out
    assert "tables equal" in again.out
    assert rftd("export", answer["experiment"][:18], "--to", f"{file}2", "--data", data).status == 0
    moved = rftd("import", file, "--map", "/jobs=/elsewhere", "--data", data)
    assert moved.status == 5
    assert "other content" in moved.err


def test_folders_are_named_as_submit_names_them(
    rftd: Rftd, ended: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "small.rftd")
    assert rftd("export", "small", "--to", file, "--data", str(ended.root)).status == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    wanted = {"there/../here": tmp_path / "here", "~/runs/": tmp_path / "me" / "runs", "./x//y": tmp_path / "x" / "y"}
    for number, (text, folder) in enumerate(wanted.items()):
        said = rftd("import", file, "--map", f"//jobs/.={text}", "--data", f"./z/../{number}", "--json")
        assert said.status == 0, said.err
        assert json.loads(said.out)["job_dir"] == str(folder), said.err
    default = rftd("import", file, "--data", "./z/../9", "--json")
    assert json.loads(default.out)["job_dir"].startswith(f"{tmp_path}/9/imported/")
    taken = rftd("import", file, "--map", "/jobs=/jobs", "--data", str(ended.root))
    assert taken.status == 5
    assert "other has that folder" in taken.err


def test_what_is_wrong_is_said(rftd: Rftd, ended: DataFolder, tmp_path: Path) -> None:
    data = ("--data", str(ended.root))
    assert rftd("export", "nobody", *data).status == 3
    (tmp_path / "there").write_text("mine")
    assert rftd("export", "small", "--to", str(tmp_path / "there"), *data).status == 5
    assert rftd("export", "small", "--to", str(tmp_path / "no" / "folder"), *data).status == 2
    assert rftd("export", "small", "--data", str(tmp_path / "empty")).status == 3
    assert rftd("import", str(tmp_path / "none"), *data).status == 3
    assert rftd("import", str(tmp_path / "there"), *data).status == 2
    assert rftd("import", str(tmp_path / "there"), "--map", "relative=x", *data).status == 2


def test_a_daemon_on_the_folder_is_respected(
    rftd: Rftd, ended: DataFolder, running: DataFolder, tmp_path: Path
) -> None:
    busy, file = ("--data", str(running.root)), str(tmp_path / "busy.rftd")
    lock = LockFile(running.log)
    try:
        said = rftd("export", "busy", "--to", file, *busy)
        assert said.status == 5
        assert "a daemon runs it" in said.err
        assert rftd("export", "busy", "--to", file, "--force", *busy).status == 0
        assert rftd("import", file, *busy).status == 5
    finally:
        lock.release()
    assert rftd("export", "busy", "--to", f"{file}2", *busy).status == 0
    lock = LockFile(ended.log)
    try:
        assert rftd("export", "other", "--to", f"{file}3", "--data", str(ended.root)).status == 0, "it has ended"
    finally:
        lock.release()


READERS: Final = (
    ("verify",),
    ("replay", "small"),
    ("export", "small", "--to", "other.rftd"),
    ("gc",),
    ("rebuild",),
    ("rebuild", "--verify"),
    ("why", "small"),
    ("dlq", "ls"),
    ("backup", "copy"),
)
"""Every verb that reads the log of a folder without a daemon."""


def test_nobody_reads_or_writes_a_backup_that_is_not_whole(
    rftd: Rftd, ended: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RFTD_SERVER")
    file = str(tmp_path / "small.rftd")
    assert rftd("export", "small", "--to", file, "--data", str(ended.root)).status == 0
    ended.unfinished.touch()
    before = scan_chain(ended.log).records
    for words in (*READERS, ("import", file)):
        said = rftd(*words, "--data", str(ended.root))
        assert said.status == 5, (words, said)
        assert "backup" in said.err, said.err
    assert scan_chain(ended.log).records == before


def test_no_daemon_starts_on_half_an_import(
    rftd: Rftd, ended: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, folder = str(tmp_path / "small.rftd"), DataFolder(tmp_path / "two")
    assert rftd("export", "small", "--to", file, "--data", str(ended.root)).status == 0
    monkeypatch.delenv("RFTD_SERVER")
    whole = SqliteLog.append

    async def died(self: SqliteLog, drafts: list[object]) -> object:
        await whole(self, drafts[:5])
        raise ConflictError("died")

    with monkeypatch.context() as patched:
        patched.setattr(SqliteLog, "append", died)
        assert rftd("import", file, "--data", str(folder.root)).status == 5
    with pytest.raises(ConflictError, match="was interrupted"):
        folder.prepare()
    for words in READERS:
        said = rftd(*words, "--data", str(folder.root))
        assert said.status == 5, (words, said)
        assert f"rftd import {file}" in said.err, said.err
    assert rftd("import", file, "--data", str(folder.root)).status == 0
    folder.prepare()
    assert rftd("verify", "--data", str(folder.root)).status == rftd("verify", "--data", str(ended.root)).status


def test_an_import_names_every_input_that_is_not_here(
    rftd: Rftd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter, a teacher and a reward model are read as the model is: those that --map finds are not missing."""

    usual = synthetic_run.spec_of

    def spec_of(name: str, rft_steps: int, job_dir: str) -> ExperimentSpec:
        spec = usual(name, rft_steps, job_dir)
        stage = replace(
            spec.stages[1],
            model=replace(spec.stages[1].model, lora=LoraSpec(path="/old/lora")),
            trainer=TrainerSpec(critic_path="/old/critic", teacher_path="/old/teacher"),
            taskset=TasksetSpec(name="t", path="/old/rows.jsonl", reward_args={"path": "/old/judge"}),
        )
        return replace(spec, stages=(spec.stages[0], stage))

    run = SyntheticRun(Recorder(), name="busy")
    with monkeypatch.context() as patched:
        patched.setattr(synthetic_run, "spec_of", spec_of)
        run.begin()
    folder, file = filled(tmp_path / "one", run), str(tmp_path / "busy.rftd")
    assert rftd("export", "busy", "--to", file, "--data", str(folder.root)).status == 0
    said = rftd("import", file, "--json", "--data", str(tmp_path / "two"))
    names = ("critic", "judge", "lora", "rows.jsonl", "teacher")
    assert json.loads(said.out)["missing"] == ["/model", *(f"/old/{name}" for name in names)]
    for name in names[:3]:
        (tmp_path / "new" / name).mkdir(parents=True)
    moved = rftd("import", file, "--map", f"/old={tmp_path}/new", "--json", "--data", str(tmp_path / "three"))
    assert json.loads(moved.out)["missing"] == ["/model", f"{tmp_path}/new/rows.jsonl", f"{tmp_path}/new/teacher"]


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        (("--kafka", "broker:9092"), "rftd export NAME --kafka"),
        (("--log", "kafka://broker:9092"), "rftd export NAME --kafka"),
        (("--postgres", "postgresql://db/rftd"), "rftd rebuild --postgres"),
    ],
)
def test_a_backup_of_what_is_in_no_folder_is_refused_with_what_to_do(
    rftd: Rftd, ended: DataFolder, tmp_path: Path, option: tuple[str, ...], advice: str
) -> None:
    said = rftd("backup", *option, str(tmp_path / "copy"), "--data", str(ended.root))
    assert said.status == 2
    assert said.err.startswith("error")
    assert f"{option[0]}: " in said.err
    assert "in no data folder" in said.err or "is not in the data folder" in said.err
    assert advice in said.err
    assert not (tmp_path / "copy").exists()
