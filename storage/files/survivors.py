"""Witnesses surviving a shortened log: in the data folder, the tables and the jobs' folders.

    <data>/log/log.heads                      what the embedded log acknowledged last
    <data>/losses.json                        losses noticed before, as described at that time
    the tables' positions                     how far the projections had come
    <job_dir>/snapshots/N.fold, N.fold.aside  folded state, of any release
    <job_dir>/snapshots/log.heads             what the daemon had read last, and at the end
    <job_dir>/snapshots/log.heads.ROLE-SLOT   what a worker had read before it met a log without these records
    <job_dir>/global_step_N/log.json          what the trainer had read, if no event of this log names the folder
    <job_dir>/.trainer-eE/*/log.json          the same, of a checkpoint not yet, or no longer, under its name
    <data>/known/N.fold                       the daemon's own list of experiments

Heads in the log itself, in fences and checkpoints, are read from there. No witness is ever removed.
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
"""Minimum seconds between two writes of a job folder's remembered heads."""


class Job(NamedTuple):
    """Name and folder of an experiment."""

    name: str
    """Name of the experiment."""
    folder: Path
    """The experiment's folder."""


def of_log_folder(folder: Path) -> list[Witness]:
    """Returns the heads remembered by the embedded log's own file. Blocks."""
    heads = read_heads(folder / FILE_NAME)
    return [Witness(str(folder / FILE_NAME), heads)] if heads else []


def of_jobs(jobs: Iterable[Job]) -> list[Witness]:
    """Returns the heads remembered by the folders of experiments. Blocks."""
    return [witness for job in jobs for witness in _job_witnesses(job)]


async def of_tables(engine: AsyncEngine) -> list[Witness]:
    """Returns the positions of the projections; empty without tables."""
    async with engine.connect() as connection:
        if not await connection.run_sync(lambda sync: inspect(sync).has_table(table_of(Positions).name)):
            return []
        return await _position_witnesses(connection)


async def _position_witnesses(connection: AsyncConnection) -> list[Witness]:
    """Returns a list with the positions stored in the tables as its only witness; an empty list without positions."""
    heads = await read_positions(connection)
    return [Witness("the tables' positions", heads)] if heads else []


def leave_word(job_dir: str, who: str, marks: Iterable[HeadRef]) -> None:
    """Writes the heads read by a worker from a log now without the records. Blocks."""
    folder = Path(job_dir) / FOLDER
    make_durable_folder(folder)
    file = HeadsFile(folder / f"{FILE_NAME}.{who}")
    # Only marks with a chain: an offset alone cannot distinguish the original record from another at an equal position.
    file.write({partition: mark for partition, mark in heads_of(marks).items() if mark.chain})
    file.close()


def of_registry(folder: Path) -> list[Witness]:
    """Returns the heads remembered by the daemon's own list of experiments. Blocks."""
    return _snapshot_witnesses(folder, "the list of experiments")


def of_fold(state: RunState) -> list[Witness]:
    """Returns the heads remembered by an experiment's checkpoints: by their events, or else by their folders. Blocks.

    The content of a folder named by an event is ignored: possibly brought from elsewhere, by an import.
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
    """Returns the state of an experiment without a run, for `of_fold`: the given spine plus the folded checkpoint
    events.
    """
    state = RunState(experiment, spine_only=True)
    state.spine = spine
    partition = partition_of(CHECKPOINTS, experiment)
    async for decoded in effective_records(log, partition, FenceView(), is_wanted=of_experiment(experiment)):
        if decoded.head.experiment == experiment:
            state.apply(decoded)
    return state


def of_checkpoints(spec: ExperimentSpec, experiment: UUID, named: Collection[str] = ()) -> list[Witness]:
    """Returns the heads remembered by an experiment's checkpoint folders, except folders in `named`. Blocks.

    Includes checkpoints still being written by a trainer: possibly the only memory of acknowledged records.
    """
    return [
        Witness(f"{path / NAME}", heads_of(witness.heads))
        for folder in sorted(stage_folders(spec))
        for path in (*sorted(folder.glob("global_step_*")), *_in_workplaces(folder))
        if str(path) not in named and (witness := read_witness(path)) is not None
        if witness.experiment == experiment
    ]


def put_workplaces_aside(folders: Iterable[Path]) -> None:
    """Renames the witnesses of unfinished checkpoints in the given folders, as memories of another log. Blocks.

    The experiment continues in another log. A checkpoint from its final name may be put back, and stays whole.
    """
    for folder in folders:
        for path in _in_workplaces(folder):
            if original_of(path.name) != path.name:
                continue
            with suppress(FileNotFoundError, NotADirectoryError):
                (path / NAME).rename(path / f"{NAME}.before-import")


def _in_workplaces(folder: Path) -> Iterator[Path]:
    """Yields the paths inside the workplaces of trainers."""
    for workplace in sorted(path for path in folder.glob(".*") if epoch_of(path.name)):
        yield from left_in(workplace)


class LossesFile:
    """The losses as first noticed, before new records were appended. Reads and writes block."""

    def __init__(self, path: Path) -> None:
        """`path` is the file, created by the first write."""
        self._path = path

    def read(self) -> list[Loss]:
        """Returns all losses. Raises CodecError for a damaged file, to be inspected by a person before overwriting."""
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
        """Replaces the list of losses, durably, creating the folder if needed."""
        make_durable_folder(self._path.parent)
        write_durable(self._path, msgspec.json.format(msgspec.json.encode(losses)))


class JobMemory:
    """The heads last read by the daemon, stored in the job's folder, out of reach of a restore of an older log."""

    def __init__(self, folder: Path, follower: Follower, clock: Clock) -> None:
        """The heads read by `follower` are written into `folder`."""
        self._folder = folder
        self._follower = follower
        self._clock = clock
        self._folded = -1
        """Number of records folded at the last write; -1 before the first."""
        self._next_s = 0.0
        """Earliest monotonic time of the next write."""
        self._file: HeadsFile | None = None
        """The open file; None before the first write."""

    async def look(self) -> None:
        """Remembers the heads if there are new records and `REMEMBER_S` has passed."""
        if self._clock.monotonic_s() >= self._next_s:
            await self.remember()

    async def remember(self) -> None:
        """Writes the heads now. An unwritable folder is ignored here: other parts report the problem."""
        self._next_s = self._clock.monotonic_s() + REMEMBER_S
        if self._follower.folded != self._folded:
            self._folded = self._follower.folded
            heads = {partition: mark for partition, mark in heads_of(self._follower.marks()).items() if mark.chain}
            # Streams with retention lose records on purpose: their heads would look like losses.
            truth = {partition: heads[partition] for partition in TRUTH if partition in heads}
            await asyncio.to_thread(self._write_heads, truth)

    def close(self) -> None:
        """Closes the file of heads, if one was opened; idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write_heads(self, heads: Heads) -> None:
        """Writes the heads, creating the file if needed; an unwritable folder is ignored."""
        try:
            if self._file is None:
                make_durable_folder(self._folder)
                self._file = HeadsFile(self._folder / FILE_NAME)
        except OSError:
            return
        self._file.write(heads)


def _job_witnesses(job: Job) -> list[Witness]:
    """Returns the heads remembered in an experiment's folder of snapshots."""
    folder = job.folder / FOLDER
    witnesses: list[Witness] = []
    for path in sorted(folder.glob(f"{FILE_NAME}*")):
        with suppress(OSError):
            witnesses.append(Witness(f"{path} of {job.name}", read_heads(path)))
    return [*witnesses, *_snapshot_witnesses(folder, job.name)]


def _snapshot_witnesses(folder: Path, whose: str) -> list[Witness]:
    """Returns the heads remembered by the snapshots of a folder."""
    witnesses: list[Witness] = []
    try:
        paths = sorted(path for path in folder.iterdir() if ".fold" in path.suffixes)
    except OSError:
        return []
    for path in paths:
        try:
            # Without the parts: the heads of a snapshot are readable even with a fold of another release.
            witnesses.append(Witness(f"{path} of {whose}", unpack(path.read_bytes(), Snapshot[Nothing]).heads()))
        except (OSError, CodecError):
            continue
    return witnesses
