"""Files that are cut off at any byte, or in which a bit is another: read as before, or refused by their reader.

A refusal is an error of ours that says where. Anything else (fewer records in silence, another error) is broken.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import msgspec
from synthetic.faults.log_workload import PARTITIONS, draft
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock
from rftd.ops.errors import CodecError, RftdError
from rftd.storage.files.checkpoints import commit_folder, verify
from rftd.storage.portable.experiment import export_experiment, import_experiment
from rftd.streams.folds.run_state import RunParts, RunState
from rftd.streams.folds.snapshot import Snapshot, pack, unpack
from rftd.streams.log.topics import TRUTH
from rftd.streams.memory import MemoryLog
from rftd.streams.sqlite.log import SqliteLog, schema

RECORDS = 12


class DamageCounts(msgspec.Struct, kw_only=True):
    """The outcomes of a series of damages."""

    cases: dict[str, int] = {}
    """The outcomes by the target that was damaged."""
    equal: dict[str, int] = {}
    """Read as before: the byte meant nothing, or is kept twice."""
    refused: dict[str, int] = {}
    broken: list[str] = []


class Target(NamedTuple):
    """Something that is read from files."""

    name: str
    file: str
    """The file below the folder that is damaged."""
    make: Callable[[Path], object]
    """Writes the folder, in which nothing is there yet."""
    look: Callable[[Path], object]
    """The reader's value of the folder. Raises the reader's error."""


def damaged(targets: list[Target], chance: random.Random, *, cuts: int, flips: int) -> DamageCounts:
    """Each target with so many cuts at random bytes (0: at every byte) and so many flipped bits."""
    counts = DamageCounts()
    with tempfile.TemporaryDirectory(prefix="rftd-") as folder, small_pages():
        for target in targets:
            good, bad = Path(folder) / target.name, Path(folder) / "bad"
            good.mkdir()
            target.make(good)
            content = (good / target.file).read_bytes()
            shutil.copytree(good, bad)
            expected = target.look(bad)
            for how, broken in _damages(content, chance, cuts, flips):
                shutil.rmtree(bad)
                shutil.copytree(good, bad)
                (bad / target.file).write_bytes(broken)
                _judge(target, how, bad, expected, counts)
            shutil.rmtree(bad)
    return counts


def _damages(content: bytes, chance: random.Random, cuts: int, flips: int) -> Iterator[tuple[str, bytes]]:
    places = range(len(content)) if cuts == 0 else (chance.randrange(len(content)) for _ in range(cuts))
    for place in places:
        yield f"cut at byte {place} of {len(content)}", content[:place]
    for _ in range(flips):
        place, bit = chance.randrange(len(content)), chance.randrange(8)
        flipped = bytes([content[place] ^ 1 << bit])
        yield f"bit {bit} of byte {place} flipped", content[:place] + flipped + content[place + 1 :]


def _judge(target: Target, how: str, bad: Path, expected: object, counts: DamageCounts) -> None:
    counts.cases[target.name] = counts.cases.get(target.name, 0) + 1
    try:
        found = target.look(bad)
    except RftdError as error:
        counts.refused[target.name] = counts.refused.get(target.name, 0) + 1
        if not error.where and "@" not in error.what:
            counts.broken.append(f"{target.name}, {how}: refused without a place: {error}")
    except Exception as error:
        counts.broken.append(f"{target.name}, {how}: {type(error).__name__}: {error}")
    else:
        counts.equal[target.name] = counts.equal.get(target.name, 0) + 1
        if found != expected:
            counts.broken.append(f"{target.name}, {how}: something else is read, in silence")


@contextmanager
def small_pages(size_bytes: int = 512) -> Iterator[None]:
    """New logs have small pages, so that every byte of one can be tried."""
    before = schema.PAGE_SIZE_BYTES
    setattr(schema, "PAGE_SIZE_BYTES", size_bytes)  # noqa: B010
    try:
        yield
    finally:
        setattr(schema, "PAGE_SIZE_BYTES", before)  # noqa: B010


async def _appended(folder: Path) -> SqliteLog:
    log = await SqliteLog.open(folder)
    for number in range(RECORDS):
        await log.append([draft(number)])
    return log


def _closed_log(folder: Path) -> None:
    async def make() -> None:
        await (await _appended(folder)).close()

    asyncio.run(make())


def _killed_log(folder: Path) -> None:
    """A log as kill -9 leaves it: everything is in the write-ahead log."""

    async def make() -> None:
        with tempfile.TemporaryDirectory(prefix="rftd-") as other:
            log = await _appended(Path(other))
            shutil.copytree(other, folder, dirs_exist_ok=True)
            await log.close()

    asyncio.run(make())


def _records(folder: Path) -> object:
    async def read() -> object:
        log = await SqliteLog.open(folder)
        try:
            return [await log.read(each, 0) for each in PARTITIONS]
        finally:
            await log.close()

    return asyncio.run(read())


def _run() -> tuple[UUID, Recorder]:
    recorder = Recorder(3)
    return SyntheticRun(recorder, name="small", steps=1, seed=3).write().id, recorder


def _export(folder: Path) -> None:
    async def make() -> None:
        id, recorder = _run()
        log = MemoryLog()
        await log.append(recorder.drafts)
        await export_experiment(log, id, folder / "x.rftd", release="1", clock=ManualClock(), checkpoints="none")

    asyncio.run(make())


def _imported(folder: Path) -> object:
    async def read() -> object:
        log = MemoryLog()
        moves = [("/jobs", "/jobs")]
        await import_experiment(log, folder / "x.rftd", home=folder, clock=ManualClock(), moves=moves, verify=False)
        return [await log.read(each, 0) for each in TRUTH]

    return asyncio.run(read())


def _fold(folder: Path) -> None:
    parts = RunState(UUID(int=1)).parts()
    snapshot = Snapshot(experiment=UUID(int=1), marks=(), fences=(), parts=parts)
    (folder / "1.fold").write_bytes(pack(snapshot))


def _folded(folder: Path) -> object:
    try:
        return msgspec.msgpack.encode(unpack((folder / "1.fold").read_bytes(), Snapshot[RunParts]))
    except CodecError as error:  # whoever passes it over says which file it was
        raise CodecError(error.what, where=str(folder)) from error


def _checkpoint(folder: Path) -> None:
    def write(beside: Path) -> None:
        (beside / "actor").mkdir()
        (beside / "actor" / "model.safetensors").write_bytes(random.Random(1).randbytes(700))

    files = commit_folder(folder / "global_step_1", write)
    (folder / "event").write_bytes(msgspec.json.encode(files))


def _verified(folder: Path) -> object:
    from rftd.streams.events.checkpoint import FileRef

    verify(folder / "global_step_1", msgspec.json.decode((folder / "event").read_bytes(), type=tuple[FileRef, ...]))
    return True


def _weights(folder: Path) -> None:
    import torch

    from rftd.workers.weights.checkpoint import export
    from rftd.workers.weights.torch_bytes import bytes_of

    tensors = {"a": torch.arange(24.0).reshape(4, 6), "b": torch.ones(5, dtype=torch.bfloat16)}
    exported = export(bytes_of(tensors), folder / "v1-g0", version=1, generation=0)
    (folder / "manifest").write_text(exported.manifest)


def _loaded(folder: Path) -> object:
    from rftd.workers.weights.checkpoint import read
    from rftd.workers.weights.torch_bytes import tensors_of

    _, tensors = read(folder / "v1-g0", expect=(folder / "manifest").read_text())
    return {name: (str(each.dtype), each.tolist()) for name, each in tensors_of(tensors).items()}


TARGETS = [
    Target("database", "log.db", _closed_log, _records),
    Target("write-ahead log", "log.db-wal", _killed_log, _records),
    Target("heads", "log.heads", _closed_log, _records),
    Target("export", "x.rftd", _export, _imported),
    Target("snapshot", "1.fold", _fold, _folded),
    Target("checkpoint", "global_step_1/actor/model.safetensors", _checkpoint, _verified),
    Target("manifest", "v1-g0/manifest.json", _weights, _loaded),
    Target("safetensors", "v1-g0/model.safetensors", _weights, _loaded),
]
