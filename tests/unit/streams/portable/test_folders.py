"""Folders of one machine become those of another: every path of a specification, and one form of them all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock
from rftd.ops.errors import ConflictError
from rftd.ops.paths import absolute_path
from rftd.storage.portable.experiment import Taken, export_experiment, import_experiment
from rftd.streams.events.experiment import ExperimentSubmitted
from rftd.streams.log.marked import inputs_of
from rftd.streams.memory import MemoryLog
from rftd.streams.portable.folders import Folders
from rftd.streams.spec.spec import ExperimentSpec

OLD, NEW = "/home/me/runs", "/srv/runs"


def is_path(name: str) -> bool:
    return name in ("path", "folder") or name.endswith(("_path", "_dir"))


def filled(kind: inspect.Type, path: str) -> Any:
    """A value of the type whose every path lies below OLD."""
    match kind:
        case inspect.Metadata():
            return filled(kind.type, path)
        case inspect.StructType():
            return kind.cls(**{each.name: filled(each.type, f"{path}.{each.name}") for each in kind.fields})
        case inspect.UnionType():
            return filled(next(each for each in kind.types if not isinstance(each, inspect.NoneType)), path)
        case inspect.VarTupleType():
            return (filled(kind.item_type, path),)
        case inspect.TupleType():
            return tuple(filled(each, path) for each in kind.item_types)
        case inspect.StrType():
            return f"{OLD}/{path}" if is_path(path.rpartition(".")[2]) else "x"
        case inspect.DictType():
            return {"path": f"{OLD}/{path}"} if path.endswith(".reward_args") else {}
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.BoolType():
            return False
        case inspect.LiteralType(values=values):
            return values[0]
    raise TypeError(f"{path}: {kind}")


def test_every_path_of_a_specification_moves() -> None:
    """Those of an adapter, a critic, a teacher and the folder in memory stayed behind, then that of a reward model."""
    spec = filled(inspect.type_info(ExperimentSpec), "")
    assert isinstance(spec, ExperimentSpec)
    moved = Folders([(OLD, NEW)]).event(ExperimentSubmitted(spec=spec))
    assert isinstance(moved, ExperimentSubmitted)
    before, after = msgspec.json.encode(spec).decode(), msgspec.json.encode(moved.spec).decode()
    assert before.count(OLD) == 16
    assert after == before.replace(OLD, NEW)
    models = {"model.path", "model.lora.path", "trainer.critic_path", "trainer.teacher_path", "auxiliary.path"}
    kinds = ("taskset", "more_tasksets", "dataset", "evals")
    tasksets = {f"{name}.{field}" for name in kinds for field in ("path", "reward_args")}
    assert inputs_of(moved.spec) == {f"{NEW}/.stages.{name}" for name in models | tasksets}


def test_paths_have_one_form(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    for text in ("x", "./x", "y/../x", "x/", "x//", str(tmp_path / "x"), f"/{tmp_path}/./x"):
        assert absolute_path(text) == str(tmp_path / "x")
    assert absolute_path("~/x") == "/home/me/x"
    assert absolute_path("x", below=Path("/a/b")) == "/a/b/x"
    folders = Folders([("//home/me/./runs/", "/srv/old/../runs")])
    assert folders.path("/home/me/runs/a") == "/srv/runs/a" == folders.path("//home/me//runs/a")
    assert folders.path("owner/name") == "owner/name"
    assert folders.path("/home/me/runs2") == "/home/me/runs2"


async def exported(folder: Path, name: str) -> tuple[Path, SyntheticRun]:
    """An export without files of an experiment whose folder lies in `folder`, on this machine."""
    recorder = Recorder()
    run = SyntheticRun(recorder, name=name, steps=1, job_dir=str(folder / "job")).write()
    (folder / "job").mkdir()
    log = MemoryLog()
    await log.append(recorder.drafts)
    await export_experiment(log, run.id, folder / "x.rftd", release="1", clock=ManualClock(), checkpoints="none")
    return folder / "x.rftd", run


@pytest.mark.anyio
async def test_no_two_experiments_share_a_folder(tmp_path: Path) -> None:
    """Each removes from its folder what no event of its own names."""
    path, run = await exported(tmp_path, "moved")
    holder = [Taken(Recorder(5).ids.new(), "holder", run.job_dir)]
    home, clock = tmp_path / "data", ManualClock()
    done = await import_experiment(MemoryLog(), path, home=home, clock=clock, taken_folders=holder)
    assert done.spec.job_dir == str(home / "imported" / str(run.id))
    own = [Taken(run.id, "moved", run.job_dir)]
    assert (
        await import_experiment(MemoryLog(), path, home=home, clock=clock, taken_folders=own)
    ).spec.job_dir == run.job_dir
    moves = [(str(tmp_path), str(tmp_path))]
    with pytest.raises(ConflictError, match="holder has that folder") as raised:
        await import_experiment(MemoryLog(), path, home=home, clock=clock, taken_folders=holder, moves=moves)
    assert raised.value.fix == f"choose another: --map {run.job_dir}=FOLDER"


@pytest.mark.anyio
async def test_an_export_is_durable_before_it_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes first, then its name: a power cut left an archive without a name, and its files were gone."""
    synced: list[tuple[str, bool]] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        synced.append((Path(name).name, (tmp_path / "x.rftd").exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    await exported(tmp_path, "kept")
    assert synced == [(".x.rftd.partial", False), (tmp_path.name, True)]
