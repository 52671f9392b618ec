"""Files of an experiment that no event names: a pure function over the fold and a listing of folders.

    <job_dir or a stage's folder>/global_step_N, .global_step_N.tmp, .global_step_N.old, .latest_*.tmp
    <job_dir>/weights/vN-gM-eE, .vN-gM-eE.partial      (E: the epoch of the trainer that wrote it)
    <shared folder, or job_dir/weights>/vN-gM-eE.mapped, .spare-eE-PID.mapped.partial
    <each of these>/.trainer-eE/...                    files in preparation by a trainer: `workplace`
    <job_dir>/turn.door, turn.room, owner.json
    <job_dir>/artifacts/ab/<sha256>, .*.tmp
    <a stage's folder>/serving/history.db, its -wal and -shm, url
    <job_dir>/datasets/<digest>-N.vN.arrow, <digest>.json, .*.tmp, .*.lock
    <job_dir>/snapshots/N.fold, .*.tmp, and memories of the log: log.heads, log.heads.ROLE-SLOT, N.fold.aside

Files with other names do not belong to rftd, and are never touched.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from rftd.ops import faults
from rftd.storage.files import folder_owner, snapshots
from rftd.storage.files.checkpoints import LATEST_CHECKPOINT, LATEST_WEIGHTS
from rftd.storage.files.shared_memory import shared_folder
from rftd.storage.files.workplace import epoch_of, left_in, original_of
from rftd.streams.folds.run_state import RunState
from rftd.streams.log import topics
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import partition_of
from rftd.streams.portable.experiment_records import OwnRecords, closed_heads
from rftd.streams.portable.export import OutsideNames
from rftd.streams.spec.spec import ExperimentSpec

_PARTIAL: Final = "-partial"
"""Suffix of the kinds of unfinished files."""
_REPLACED: Final = "checkpoint-replaced"
"""Kind of a checkpoint's folder that was replaced by another checkpoint of the same step."""
_LEFTOVER: Final = "workplace-left"
"""The kind of a file or folder left in a trainer's workplace before its rename."""
_WORKPLACE: Final = "workplace-partial"
"""The kind of an empty workplace."""

_MARKERS: Final = f"({re.escape(LATEST_CHECKPOINT)}|{re.escape(LATEST_WEIGHTS)})"
"""Pattern of the marker files' names."""
_IN_STAGE: Final = (
    ("checkpoint", re.compile(r"global_step_[0-9]{1,12}")),
    ("checkpoint-partial", re.compile(r"\.global_step_[0-9]{1,12}\.(g[0-9]+\.)?tmp")),
    (_REPLACED, re.compile(r"\.global_step_[0-9]{1,12}\.(g[0-9]+\.)?old")),
    ("marker", re.compile(_MARKERS)),
    ("checkpoint-partial", re.compile(rf"\.{_MARKERS}\.(g[0-9]+\.)?tmp")),
)
"""Kinds and names of files in a stage's folder."""
_IN_JOB: Final = (
    ("turn", re.compile(r"turn\.(door|room)")),
    ("owner", re.compile(rf"\.?{re.escape(folder_owner.NAME)}(\.tmp)?")),
)
"""Kinds and names of files in the job's folder."""
_VERSION: Final = r"v[0-9]+-g[0-9]+(?:-e(?P<epoch>[0-9]+)(?:-r[0-9]+)?)?"
"""Pattern of a weight version's name."""
_IN_WEIGHTS: Final = (
    ("weights", re.compile(_VERSION)),
    ("weights-partial", re.compile(rf"\.{_VERSION}\.(partial|gone)")),
)
"""Kinds and names of files in the folder of weights."""
_MAPPED: Final = "weights-mapped"
"""Kind of weights in mapped memory."""
_IN_MEMORY: Final = (
    (_MAPPED, re.compile(rf"{_VERSION}\.mapped")),
    ("weights-mapped-partial", re.compile(r"\.spare-(?:e(?P<epoch>[0-9]+)-)?[0-9]+\.mapped\.partial")),
)
"""Kinds and names of files in a folder of mapped weights."""
_IN_ARTIFACTS: Final = (
    ("artifact", re.compile(r"[0-9a-f]{64}")),
    ("artifact-partial", re.compile(r"\..*\.tmp")),
)
"""Kinds and names of artifacts."""
_IN_SNAPSHOTS: Final = (
    ("snapshot", re.compile(r"[0-9]{16}\.fold")),
    ("snapshot-partial", re.compile(r"\.[0-9]{16}\.fold\.tmp")),
    ("memory", re.compile(r"log\.heads(\.[a-z]+-[0-9]+)?|[0-9]{16}\.fold\.aside[0-9]*")),
)
"""Kinds and names of files in the folder of snapshots."""
_IN_SERVING: Final = (("conversations", re.compile(r"history\.db(-wal|-shm)?|url")),)
"""Kinds and names of a served history's files."""
DATASETS: Final = "datasets"
"""The folder of an experiment's copies of Parquet and Arrow files."""
_COPY: Final = "dataset-copy"
"""Kind of a dataset's copy."""
_IN_DATASETS: Final = (
    (_COPY, re.compile(r"[0-9a-f]{32}(-[0-9]+\.v[0-9]+\.arrow|\.json)")),
    ("dataset-partial", re.compile(r"\.[0-9a-f]{32}[-.].*\.(tmp|lock)")),
)
"""Kinds and names of files in the folder of dataset copies."""
_IN_LOG: Final = (("log", re.compile(r"(trainer|explorer_[0-9]+)\.log")),)
"""Kinds and names of workers' log files."""

_INNER: Final = ("artifacts", "weights", snapshots.FOLDER, DATASETS, "log")
"""Folders within a job's folder, removed when empty."""

GRACE_S: Final = 600.0
"""Age in seconds below which a file may belong to a worker that has not been told to stop yet."""

TRAINER_KINDS: Final = frozenset(
    {
        "checkpoint",
        "checkpoint-partial",
        _REPLACED,
        "weights",
        "weights-partial",
        _MAPPED,
        "weights-mapped-partial",
        _LEFTOVER,
        _WORKPLACE,
    }
)
"""The kinds written only by a trainer."""

KINDS_OF_ONE_TRAINER: Final = TRAINER_KINDS - {"checkpoint", _LEFTOVER, _WORKPLACE}
"""The kinds whose names belong to one trainer alone: its successor may remove them if no event names them.

An unnamed `global_step_N` may belong to the successor by then; the next save of that step replaces it.
"""

TRANSIENT_KINDS: Final = frozenset(
    {
        "snapshot",
        "snapshot-partial",
        "checkpoint-partial",
        _REPLACED,
        "weights",
        "weights-partial",
        _MAPPED,
        "weights-mapped-partial",
        _LEFTOVER,
        _WORKPLACE,
        "artifact-partial",
        _COPY,
        "dataset-partial",
    }
)
"""The kinds that never remain once the folder of an ended experiment was cleaned: snapshots are removed last."""


class OwnFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder of an experiment, recognised by name."""

    kind: str
    """Kind of the file."""
    path: str
    """Path of the file or folder."""
    size_bytes: int
    """Size with everything below."""
    modified_ns: int
    """Modification time of its newest file, Unix time in nanoseconds."""
    epoch: int = 0
    """The epoch of the trainer that wrote it; 0 if the name does not contain one."""


class Referenced(msgspec.Struct, frozen=True, kw_only=True):
    """The files and folders named by an experiment's events."""

    checkpoints: frozenset[str]
    """The folders of checkpoints."""
    weights: frozenset[str]
    """The folders or files of published weights."""
    artifacts: frozenset[str] | None
    """The sha256 of each artifact; None if unknown, so that all are kept."""
    snapshots: bool
    """False once no process will fold the experiment again or generate with its weights."""


class Unreferenced(msgspec.Struct, frozen=True, kw_only=True):
    """A removable file or folder, with size in bytes and the reason for people."""

    path: str
    """Path of the file or folder."""
    size_bytes: int
    """Size with everything below."""
    why: str
    """Reason for which the file or folder may be removed, in words for people."""


def referenced_by(state: RunState, artifacts: frozenset[str] | None = None) -> Referenced:
    """Returns the files named by the folded events of an experiment."""
    retired = state.weights.retired
    status = state.spine.status
    return Referenced(
        checkpoints=frozenset(event.path for event in state.checkpoints.values()),
        weights=frozenset(event.path for key, event in state.weights.published.items() if key not in retired),
        artifacts=artifacts,
        snapshots=status is None or not status.ended,
    )


def unreferenced(
    own_files: Iterable[OwnFile], named: Referenced, *, before_ns: int, now_ns: int | None = None
) -> Iterator[Unreferenced]:
    """Yields the files without an event, last written before `before_ns`. Pure.

    With `now_ns`, artifacts must also be older than `GRACE_S`: no fence prevents a worker on another machine, given up
    and awake again, from naming an artifact just written.
    """
    # The age limit protects files in progress: every file is written before the event.
    own_files = list(own_files)
    existing_paths = {file.path for file in own_files}
    young_ns = before_ns if now_ns is None else min(before_ns, now_ns - int(GRACE_S * 1e9))
    for file in own_files:
        if file.modified_ns >= (young_ns if file.kind == "artifact" else before_ns):
            continue
        why = _removal_reason(file, named, existing_paths)
        if why:
            yield Unreferenced(path=file.path, size_bytes=file.size_bytes, why=why)


def ours(spec: ExperimentSpec) -> list[OwnFile]:
    """Lists all files and folders of rftd in the experiment's folders. Blocks."""
    job = Path(spec.job_dir)
    files: list[OwnFile] = []
    for folder in sorted(stage_folders(spec)):
        files += _matching_files(folder, _IN_STAGE)
        files += _matching_files(folder / "serving", _IN_SERVING)
    files += _matching_files(job, _IN_JOB)
    files += _matching_files(job / "weights", _IN_WEIGHTS)
    for folder in sorted({job / "weights", *_memory_folders(spec)}):
        files += _matching_files(folder, _IN_MEMORY)
    for folder in sorted(work_folders(spec)):
        files += _in_workplaces(folder)
    for folder in sorted(_digest_folders(job / "artifacts")):
        files += _matching_files(folder, _IN_ARTIFACTS)
    files += _matching_files(job / snapshots.FOLDER, _IN_SNAPSHOTS)
    files += _matching_files(job / DATASETS, _IN_DATASETS)
    files += _matching_files(job / "log", _IN_LOG)
    return files


def stage_folders(spec: ExperimentSpec) -> set[Path]:
    """Returns the folders of an experiment's checkpoints: the job's folder, and separate folders of stages."""
    return {Path(spec.job_dir), *(Path(stage.folder) for stage in spec.stages if stage.folder)}


def work_folders(spec: ExperimentSpec) -> set[Path]:
    """Returns the folders for workplaces of an experiment's trainers: next to checkpoints and weights."""
    return {*stage_folders(spec), Path(spec.job_dir) / "weights", *_memory_folders(spec)}


def remove(paths: Iterable[str]) -> None:
    """Removes files and folders, and workplaces left empty; missing files are no error. Blocks."""
    for path in map(Path, paths):
        faults.point("garbage.before_removal")
        if path.is_dir() and not path.is_symlink():  # the link is removed, its target is not ours
            _remove_folder(path)
        else:
            path.unlink(missing_ok=True)
        for above in path.parents:
            if not epoch_of(above.name):
                break
            with contextlib.suppress(OSError):  # the folder is not empty, or is gone
                above.rmdir()


def _remove_folder(path: Path) -> None:
    """Deletes a folder; one of weights is renamed first, so that readers find all or nothing."""
    if re.fullmatch(_VERSION, path.name):
        # Renamed first: a reader opening the weights finds all or nothing, and a reader with open weights continues.
        renamed = path.with_name(f".{path.name}.gone")
        shutil.rmtree(renamed, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process removed it, or the rename is not allowed here
            path = path.rename(renamed)
        faults.point("garbage.after_rename")
    shutil.rmtree(path, ignore_errors=True)


def remove_empty_memory(spec: ExperimentSpec) -> None:
    """Removes the empty folders for weights in memory. Blocks."""
    for folder in _memory_folders(spec):
        with contextlib.suppress(OSError):  # the folder is not empty, or is gone
            folder.rmdir()


def remove_empty(spec: ExperimentSpec) -> None:
    """Removes the empty folders of an experiment. Blocks."""
    job = Path(spec.job_dir)
    inner = [*_digest_folders(job / "artifacts"), *(job / name for name in _INNER)]
    inner += _memory_folders(spec)
    inner += [folder / "serving" for folder in stage_folders(spec)]
    stages = sorted((Path(stage.folder) for stage in spec.stages if stage.folder), reverse=True)
    for folder in (*inner, *stages, job):
        try:
            folder.rmdir()  # the system refuses this for a non-empty folder: no race between check and removal
        except OSError:
            continue  # it holds files of others, or is gone


def _removal_reason(file: OwnFile, named: Referenced, existing_paths: set[str]) -> str:
    """Returns why a file may be removed; empty if it must stay."""
    path = Path(file.path)
    match file.kind:
        case "checkpoint" if file.path not in named.checkpoints:
            return "no checkpoint.committed names it"
        case "weights" | "weights-mapped" if file.path not in named.weights:
            return "no weights.published names it"
        # An event still names the weights, but no process generates answers with old weights: a replay, a fork and a
        # resumed run start from a checkpoint or the base model, and produce missing weights again.
        case "weights" | "weights-mapped" if not named.snapshots:
            return "its experiment has ended, and no process generates with it"
        case "artifact" if named.artifacts is not None and path.name not in named.artifacts:
            return "no event names it"
        case "snapshot" if not named.snapshots:
            return "nobody folds it again"
        case "dataset-copy" if not named.snapshots:
            return "its experiment has ended, and a replay copies the file anew"
        case kind if kind.endswith(_PARTIAL):
            return "it was never finished"
        case "checkpoint-replaced" if str(path.with_name(path.name.split(".")[1])) in existing_paths:
            return "another took its place"
        case "workplace-left" if (
            _target_of(path) in existing_paths or _target_of(path) not in named.checkpoints | named.weights
        ):
            return "a trainer ended while it worked on it"
        case _:
            return ""


def _matching_files(folder: Path, patterns: Sequence[tuple[str, re.Pattern[str]]]) -> Iterator[OwnFile]:
    """Yields the files of a folder whose names match one of the patterns."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    for path in paths:
        for kind, pattern in patterns:
            if (match := pattern.fullmatch(path.name)) is not None:
                epoch = int(match.groupdict().get("epoch") or 0)
                yield _own_file(kind, path, epoch)
                break


def _in_workplaces(folder: Path) -> Iterator[OwnFile]:
    """Yields the files left by trainers in workplaces, and the empty workplaces."""
    with contextlib.suppress(OSError):
        for path in sorted(child for child in folder.iterdir() if epoch_of(child.name)):
            leftovers = list(left_in(path))
            yield from (_own_file(_LEFTOVER, leftover, epoch_of(path.name)) for leftover in leftovers)
            if not leftovers:
                yield _own_file(_WORKPLACE, path, epoch_of(path.name))


def _target_of(leftover: Path) -> str:
    """Returns the path that a file in a workplace had, or was to get."""
    folder = next(above for above in leftover.parents if not epoch_of(above.name))
    return str(folder / original_of(leftover.name))


def _own_file(kind: str, path: Path, epoch: int) -> OwnFile:
    """Returns a file or folder with its size and newest modification time."""
    size_bytes, modified_ns = _size_and_mtime(path)
    return OwnFile(kind=kind, path=str(path), size_bytes=size_bytes, modified_ns=modified_ns, epoch=epoch)


def _size_and_mtime(path: Path) -> tuple[int, int]:
    """Returns the bytes of a file, or of all files below a folder, and the newest modification time (ns)."""
    size_bytes = modified_ns = 0
    for part_path in (path, *(path.rglob("*") if path.is_dir() and not path.is_symlink() else ())):
        try:
            status = part_path.lstat()  # of a link itself: its target is not ours
        except OSError:
            continue  # removed meanwhile
        modified_ns = max(modified_ns, status.st_mtime_ns)
        size_bytes += 0 if stat.S_ISDIR(status.st_mode) else status.st_size
    return size_bytes, modified_ns


def _memory_folders(spec: ExperimentSpec) -> set[Path]:
    """Returns the in-memory folders for the experiment's weights, as configured by the stages."""
    memory_dirs = {stage.synchronizer.memory_dir for stage in spec.stages if stage.synchronizer.sync_method == "memory"}
    return {shared_folder(spec.job_dir, memory_dir) for memory_dir in memory_dirs}


def _digest_folders(folder: Path) -> list[Path]:
    """Returns the subfolders of artifacts, named by two digits."""
    try:
        return [path for path in folder.iterdir() if path.is_dir() and re.fullmatch("[0-9a-f]{2}", path.name)]
    except OSError:
        return []


async def referenced_in(log: EventLog, experiment: UUID, *, artifacts: bool) -> Referenced:
    """Returns the files named by the experiment's events in the log up to now; artifacts only on request."""
    named = OutsideNames()
    own_records = OwnRecords(log, experiment)
    # Artifacts are named by experiences, nearly all of the log; everything else by a few keyed partitions.
    few = {partition_of(name, experiment) for name in topics.KEYED}
    until = await closed_heads(log)
    for partition in topics.EVENTS:
        if partition in until and (artifacts or partition in few):
            async for chunk in own_records.chunks(partition, until[partition].next_offset):
                for record in chunk:
                    named.take(record)
    return Referenced(
        checkpoints=frozenset(event.path for event in named.undeleted_checkpoints()),
        weights=frozenset(event.path for event in named.kept_weights()),
        artifacts=frozenset(sha256.hex() for sha256 in named.artifacts) if artifacts else None,
        snapshots=not named.spine.ended,
    )
