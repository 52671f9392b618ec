"""Witnesses that survive a log that was shortened: the data folder, the tables and the jobs' folders.

    <data>/log/log.heads                      what the embedded log acknowledged last
    <data>/losses.json                        what was noticed before, in the words of that time
    the tables' positions                     how far the projections had come
    <job_dir>/snapshots/N.fold, N.fold.aside  what was folded, of any release
    <job_dir>/snapshots/log.heads             what the daemon had read last, and at the end
    <job_dir>/snapshots/log.heads.ROLE-SLOT   what a worker had read that met a log which does not hold it
    <job_dir>/global_step_N/log.json          what the trainer had read, if no event of this log names the folder
    <job_dir>/.trainer-eE/*/log.json          the same, of a checkpoint that was not yet, or is no more, under its name
    <data>/known/N.fold                       the daemon's own list of experiments

Heads that lie in the log itself, in fences and checkpoints, are read from there. Nothing here is ever removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import inspect
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rftd.ops.clock import Clock
from rftd.ops.decoding import json_decoder
from rftd.ops.durable import make_durable_folder, write_durable
from rftd.ops.errors import CodecError
from rftd.storage.database.tables.base import table_of
from rftd.storage.database.tables.progress import Positions
from rftd.storage.files.checkpoint_witness import NAME, read_witness
from rftd.storage.files.snapshots import FOLDER
from rftd.storage.files.unreferenced import stage_folders
from rftd.storage.files.workplace import epoch_of, left_in, original_of
from rftd.storage.projector.writer import read_positions
from rftd.streams.events.experiment import HeadRef
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.snapshot import Nothing, Snapshot, unpack
from rftd.streams.folds.spine import Spine
from rftd.streams.log.chain import Heads
from rftd.streams.log.effective import effective_records, of_experiment
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.follower import Follower
from rftd.streams.log.log import EventLog
from rftd.streams.log.lost_records import Loss, Witness, heads_of
from rftd.streams.log.topics import CHECKPOINTS, TRUTH, partition_of
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.sqlite.heads_file import FILE_NAME, HeadsFile, read_heads

REMEMBER_S: Final = 2.0
"""The least time between two writes of what a job's folder remembers of the log."""


class Job(NamedTuple):
    """An experiment's folder."""

    name: str
    folder: Path


def of_log_folder(folder: Path) -> list[Witness]:
    """The heads that the embedded log's own file remembers. Blocks."""
    heads = read_heads(folder / FILE_NAME)
    return [Witness(str(folder / FILE_NAME), heads)] if heads else []


def of_jobs(jobs: Iterable[Job]) -> list[Witness]:
    """The heads that the folders of experiments remember. Blocks."""
    return [witness for job in jobs for witness in _of_job(job)]


async def of_tables(engine: AsyncEngine) -> list[Witness]:
    """The positions of the projections; none without tables."""
    async with engine.connect() as connection:
        if not await connection.run_sync(lambda sync: inspect(sync).has_table(table_of(Positions).name)):
            return []
        return await _of_positions(connection)


async def _of_positions(connection: AsyncConnection) -> list[Witness]:
    heads = await read_positions(connection)
    return [Witness("the tables' positions", heads)] if heads else []


def leave_word(job_dir: str, who: str, marks: Iterable[HeadRef]) -> None:
    """Writes down the heads that a worker has read of a log that does not hold them any more. Blocks."""
    folder = Path(job_dir) / FOLDER
    make_durable_folder(folder)
    file = HeadsFile(folder / f"{FILE_NAME}.{who}")
    # Only marks with a chain: an offset alone cannot tell another record at that place from the one that was read.
    file.write({partition: mark for partition, mark in heads_of(marks).items() if mark.chain})
    file.close()


def of_registry(folder: Path) -> list[Witness]:
    """The heads that the daemon's own list of experiments remembers. Blocks."""
    return _of_folds(folder, "the list of experiments")


def of_fold(state: RunState) -> list[Witness]:
    """The heads that an experiment's checkpoints remember: by their events, and of others by their folders. Blocks.

    A folder that an event names is left out: it may have come from elsewhere, with an import.
    """
    named = {event.path for event in state.checkpoints.values()}
    spec = state.spine.spec
    return [
        *(of_checkpoints(spec, state.experiment, named) if spec is not None else ()),
        *(
            Witness(f"the checkpoint of step {event.step}, generation {event.generation}", heads_of(event.heads))
            for event in state.checkpoints.values()
        ),
    ]


async def checkpoints_folded(log: EventLog, experiment: UUID, spine: Spine) -> RunState:
    """The state of an experiment without a run, for `of_fold`: its spine, and of its checkpoints the events."""
    state = RunState(experiment, spine_only=True)
    state.spine = spine
    partition = partition_of(CHECKPOINTS, experiment)
    async for decoded in effective_records(log, partition, FenceView(), is_wanted=of_experiment(experiment)):
        if decoded.head.experiment == experiment:
            state.apply(decoded)
    return state


def of_checkpoints(spec: ExperimentSpec, experiment: UUID, named: Collection[str] = ()) -> list[Witness]:
    """The heads that the folders of an experiment's checkpoints remember, but for those that are `named`. Blocks.

    A checkpoint that its trainer was still writing is heard too: it may be all that is left of what was acknowledged.
    """
    return [
        Witness(f"{path / NAME}", heads_of(witness.heads))
        for folder in sorted(stage_folders(spec))
        for path in (*sorted(folder.glob("global_step_*")), *_worked_on(folder))
        if str(path) not in named and (witness := read_witness(path)) is not None
        if witness.experiment == experiment
    ]


def put_workplaces_aside(folders: Iterable[Path]) -> None:
    """Silences the unfinished checkpoints of trainers in these folders: they remember a log that is not theirs. Blocks.

    The experiment goes on in another log. A checkpoint that was under its name before may be put back, and stays whole.
    """
    for folder in folders:
        for path in _worked_on(folder):
            if original_of(path.name) != path.name:
                continue
            with suppress(FileNotFoundError, NotADirectoryError):
                (path / NAME).rename(path / f"{NAME}.before-import")


def _worked_on(folder: Path) -> Iterator[Path]:
    """The things in the workplaces of trainers."""
    for workplace in sorted(each for each in folder.glob(".*") if epoch_of(each.name)):
        yield from left_in(workplace)


class LossesFile:
    """The losses as they were first noticed, before anything was appended over them. Reads and writes block."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[Loss]:
        """All losses. Raises CodecError for a damaged file: a person is to look at it before it is written over."""
        try:
            return json_decoder(list[Loss]).decode(self._path.read_bytes())
        except FileNotFoundError:
            return []
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CodecError(
                f"the list of losses cannot be read: {error}",
                where=str(self._path),
                fix="put it back from a backup, or move it away: what survives of the log is compared again",
            ) from error

    def write(self, losses: Sequence[Loss]) -> None:
        """Replaces the list, durably."""
        make_durable_folder(self._path.parent)
        write_durable(self._path, msgspec.json.format(msgspec.json.encode(losses)))


class JobMemory:
    """The heads that the daemon read last, kept in the job's folder, where a restored older log does not reach."""

    def __init__(self, folder: Path, follower: Follower, clock: Clock) -> None:
        self._folder = folder
        self._follower = follower
        self._clock = clock
        self._folded = -1
        self._next_s = 0.0
        self._file: HeadsFile | None = None

    async def look(self) -> None:
        """Remembers, if there is something new and the last time is a while ago."""
        if self._clock.monotonic_s() >= self._next_s:
            await self.remember()

    async def remember(self) -> None:
        """Remembers now. A folder that cannot be written is no error here: others tell of it."""
        self._next_s = self._clock.monotonic_s() + REMEMBER_S
        if self._follower.folded != self._folded:
            self._folded = self._follower.folded
            heads = {partition: mark for partition, mark in heads_of(self._follower.marks()).items() if mark.chain}
            # Streams that are no truth forget on purpose: their heads would look like losses.
            truth = {partition: heads[partition] for partition in TRUTH if partition in heads}
            await asyncio.to_thread(self._write, truth)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, heads: Heads) -> None:
        try:
            if self._file is None:
                make_durable_folder(self._folder)
                self._file = HeadsFile(self._folder / FILE_NAME)
        except OSError:
            return
        self._file.write(heads)


def _of_job(job: Job) -> list[Witness]:
    folder = job.folder / FOLDER
    found: list[Witness] = []
    for path in sorted(folder.glob(f"{FILE_NAME}*")):
        with suppress(OSError):
            found.append(Witness(f"{path} of {job.name}", read_heads(path)))
    return [*found, *_of_folds(folder, job.name)]


def _of_folds(folder: Path, whose: str) -> list[Witness]:
    found: list[Witness] = []
    try:
        paths = sorted(path for path in folder.iterdir() if ".fold" in path.suffixes)
    except OSError:
        return []
    for path in paths:
        try:
            # Without the parts: the heads of a snapshot can be read though its fold is of another release.
            found.append(Witness(f"{path} of {whose}", unpack(path.read_bytes(), Snapshot[Nothing]).heads()))
        except (OSError, CodecError):
            continue
    return found
