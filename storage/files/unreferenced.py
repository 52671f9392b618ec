"""Files of an experiment that no event names, by a pure function over the fold and a listing of its folders.

    <job_dir or a stage's folder>/global_step_N, .global_step_N.tmp, .global_step_N.old, .latest_*.tmp
    <job_dir>/weights/vN-gM-eE, .vN-gM-eE.partial      (E: the epoch of the trainer that wrote it)
    <shared folder, or job_dir/weights>/vN-gM-eE.mapped, .spare-eE-PID.mapped.partial
    <each of these>/.trainer-eE/...                    what a trainer worked on: `workplace`
    <job_dir>/turn.door, turn.room, owner.json
    <job_dir>/artifacts/ab/<sha256>, .*.tmp
    <a stage's folder>/serving/history.db, its -wal and -shm, url
    <job_dir>/datasets/<digest>-N.vN.arrow, <digest>.json, .*.tmp, .*.lock
    <job_dir>/snapshots/N.fold, .*.tmp, and what remembers the log: log.heads, log.heads.ROLE-SLOT, N.fold.aside

Files of other names are not ours, and never touched.
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
_REPLACED: Final = "checkpoint-replaced"
_LEFT: Final = "workplace-left"
"""The kind of a thing in a trainer's workplace that it meant to rename."""
_WORKPLACE: Final = "workplace-partial"
"""The kind of a workplace in which nothing is left."""

_MARKERS: Final = f"({re.escape(LATEST_CHECKPOINT)}|{re.escape(LATEST_WEIGHTS)})"
_IN_STAGE: Final = (
    ("checkpoint", re.compile(r"global_step_[0-9]{1,12}")),
    ("checkpoint-partial", re.compile(r"\.global_step_[0-9]{1,12}\.(g[0-9]+\.)?tmp")),
    (_REPLACED, re.compile(r"\.global_step_[0-9]{1,12}\.(g[0-9]+\.)?old")),
    ("marker", re.compile(_MARKERS)),
    ("checkpoint-partial", re.compile(rf"\.{_MARKERS}\.(g[0-9]+\.)?tmp")),
)
_IN_JOB: Final = (
    ("turn", re.compile(r"turn\.(door|room)")),
    ("owner", re.compile(rf"\.?{re.escape(folder_owner.NAME)}(\.tmp)?")),
)
_VERSION: Final = r"v[0-9]+-g[0-9]+(?:-e(?P<epoch>[0-9]+)(?:-r[0-9]+)?)?"
_IN_WEIGHTS: Final = (
    ("weights", re.compile(_VERSION)),
    ("weights-partial", re.compile(rf"\.{_VERSION}\.(partial|gone)")),
)
_MAPPED: Final = "weights-mapped"
_IN_MEMORY: Final = (
    (_MAPPED, re.compile(rf"{_VERSION}\.mapped")),
    ("weights-mapped-partial", re.compile(r"\.spare-(?:e(?P<epoch>[0-9]+)-)?[0-9]+\.mapped\.partial")),
)
_IN_ARTIFACTS: Final = (
    ("artifact", re.compile(r"[0-9a-f]{64}")),
    ("artifact-partial", re.compile(r"\..*\.tmp")),
)
_IN_SNAPSHOTS: Final = (
    ("snapshot", re.compile(r"[0-9]{16}\.fold")),
    ("snapshot-partial", re.compile(r"\.[0-9]{16}\.fold\.tmp")),
    ("memory", re.compile(r"log\.heads(\.[a-z]+-[0-9]+)?|[0-9]{16}\.fold\.aside[0-9]*")),
)
_IN_SERVING: Final = (("conversations", re.compile(r"history\.db(-wal|-shm)?|url")),)
DATASETS: Final = "datasets"
"""The folder of an experiment's copies of Parquet and Arrow files."""
_COPY: Final = "dataset-copy"
_IN_DATASETS: Final = (
    (_COPY, re.compile(r"[0-9a-f]{32}(-[0-9]+\.v[0-9]+\.arrow|\.json)")),
    ("dataset-partial", re.compile(r"\.[0-9a-f]{32}[-.].*\.(tmp|lock)")),
)
_IN_LOG: Final = (("log", re.compile(r"(trainer|explorer_[0-9]+)\.log")),)

_INNER: Final = ("artifacts", "weights", snapshots.FOLDER, DATASETS, "log")

GRACE_S: Final = 600.0
"""The age below which a file may be that of a worker that nobody has told to stop yet."""

OF_TRAINERS: Final = frozenset(
    {
        "checkpoint",
        "checkpoint-partial",
        _REPLACED,
        "weights",
        "weights-partial",
        _MAPPED,
        "weights-mapped-partial",
        _LEFT,
        _WORKPLACE,
    }
)
"""The kinds that only a trainer writes."""

OF_ONE_TRAINER: Final = OF_TRAINERS - {"checkpoint", _LEFT, _WORKPLACE}
"""The kinds whose names are one trainer's alone: its successor may remove them if no event names them.

A `global_step_N` that no event names may be the successor's own by then; the next save of that step replaces it.
"""

LEFT_BEHIND: Final = frozenset(
    {
        "snapshot",
        "snapshot-partial",
        "checkpoint-partial",
        _REPLACED,
        "weights",
        "weights-partial",
        _MAPPED,
        "weights-mapped-partial",
        _LEFT,
        _WORKPLACE,
        "artifact-partial",
        _COPY,
        "dataset-partial",
    }
)
"""The kinds that are never left once the folder of an ended experiment was tidied: snapshots go last."""


class OwnFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder of ours."""

    kind: str
    path: str
    size_bytes: int
    modified_ns: int
    """The time at which its newest file was written, Unix time in nanoseconds."""
    epoch: int = 0
    """The epoch of the trainer that wrote it, if its name tells."""


class Referenced(msgspec.Struct, frozen=True, kw_only=True):
    """The files and folders that an experiment's events name."""

    checkpoints: frozenset[str]
    """The folders of its checkpoints."""
    weights: frozenset[str]
    """The folders or files of its weights."""
    artifacts: frozenset[str] | None
    """The sha256 of each artifact; None if they are not known, so that all are kept."""
    snapshots: bool
    """False once nobody will fold the experiment again, nor generate with its weights."""


class Unreferenced(msgspec.Struct, frozen=True, kw_only=True):
    """Something that may go, and the reason."""

    path: str
    size_bytes: int
    why: str


def referenced_by(state: RunState, artifacts: frozenset[str] | None = None) -> Referenced:
    """The files that the folded events of an experiment name."""
    retired = state.weights.retired
    status = state.spine.status
    return Referenced(
        checkpoints=frozenset(event.path for event in state.checkpoints.values()),
        weights=frozenset(event.path for key, event in state.weights.published.items() if key not in retired),
        artifacts=artifacts,
        snapshots=status is None or not status.ended,
    )


def unreferenced(
    found: Iterable[OwnFile], kept: Referenced, *, before_ns: int, now_ns: int | None = None
) -> Iterator[Unreferenced]:
    """The things that no event names and that nobody has written to since `before_ns`. Pure.

    With `now_ns` artifacts have to be older than `GRACE_S` too: no fence keeps a worker on another machine, which was
    given up and wakes, from naming one that it has just written.
    """
    # Age protects what is on its way: every file is written before the event that names it.
    found = list(found)
    there = {each.path for each in found}
    young_ns = before_ns if now_ns is None else min(before_ns, now_ns - int(GRACE_S * 1e9))
    for each in found:
        if each.modified_ns >= (young_ns if each.kind == "artifact" else before_ns):
            continue
        why = _why(each, kept, there)
        if why:
            yield Unreferenced(path=each.path, size_bytes=each.size_bytes, why=why)


def ours(spec: ExperimentSpec) -> list[OwnFile]:
    """Everything of ours in the experiment's folders. Blocks."""
    job = Path(spec.job_dir)
    found: list[OwnFile] = []
    for folder in sorted(stage_folders(spec)):
        found += _listed(folder, _IN_STAGE)
        found += _listed(folder / "serving", _IN_SERVING)
    found += _listed(job, _IN_JOB)
    found += _listed(job / "weights", _IN_WEIGHTS)
    for folder in sorted({job / "weights", *_shared(spec)}):
        found += _listed(folder, _IN_MEMORY)
    for folder in sorted(work_folders(spec)):
        found += _worked(folder)
    for folder in sorted(_folders(job / "artifacts")):
        found += _listed(folder, _IN_ARTIFACTS)
    found += _listed(job / snapshots.FOLDER, _IN_SNAPSHOTS)
    found += _listed(job / DATASETS, _IN_DATASETS)
    found += _listed(job / "log", _IN_LOG)
    return found


def stage_folders(spec: ExperimentSpec) -> set[Path]:
    """The folders of its checkpoints."""
    return {Path(spec.job_dir), *(Path(stage.folder) for stage in spec.stages if stage.folder)}


def work_folders(spec: ExperimentSpec) -> set[Path]:
    """The folders in which its trainers have had workplaces."""
    return {*stage_folders(spec), Path(spec.job_dir) / "weights", *_shared(spec)}


def remove(paths: Iterable[str]) -> None:
    """Removes files and folders, and workplaces that become empty; what is gone already is no error. Blocks."""
    for path in map(Path, paths):
        faults.point("garbage.before_removal")
        if path.is_dir() and not path.is_symlink():  # a link goes, what it leads to is not ours
            _remove_folder(path)
        else:
            path.unlink(missing_ok=True)
        for above in path.parents:
            if not epoch_of(above.name):
                break
            with contextlib.suppress(OSError):  # it holds something, or is gone
                above.rmdir()


def _remove_folder(path: Path) -> None:
    if re.fullmatch(_VERSION, path.name):
        # Renamed first: whoever opens weights finds all of them or none, and who has opened them reads on.
        gone = path.with_name(f".{path.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        with contextlib.suppress(OSError):  # somebody else removed it, or may not rename it here
            path = path.rename(gone)
        faults.point("garbage.after_rename")
    shutil.rmtree(path, ignore_errors=True)


def remove_empty_memory(spec: ExperimentSpec) -> None:
    """Removes the folders for weights in memory that hold nothing any more. Blocks."""
    for folder in _shared(spec):
        with contextlib.suppress(OSError):  # it holds something, or is gone
            folder.rmdir()


def remove_empty(spec: ExperimentSpec) -> None:
    """Removes those of the experiment's folders that hold nothing. Blocks."""
    job = Path(spec.job_dir)
    inner = [*_folders(job / "artifacts"), *(job / name for name in _INNER)]
    inner += _shared(spec)
    inner += [folder / "serving" for folder in stage_folders(spec)]
    stages = sorted((Path(stage.folder) for stage in spec.stages if stage.folder), reverse=True)
    for folder in (*inner, *stages, job):
        try:
            folder.rmdir()  # which the system refuses for one that is not empty: no look and removal can race
        except OSError:
            continue  # it holds what is not ours, or is gone


def _why(found: OwnFile, kept: Referenced, there: set[str]) -> str:
    path = Path(found.path)
    match found.kind:
        case "checkpoint" if found.path not in kept.checkpoints:
            return "no checkpoint.committed names it"
        case "weights" | "weights-mapped" if found.path not in kept.weights:
            return "no weights.published names it"
        # An event still names it, but nobody generates with it: a replay, a fork and a run that goes on begin with a
        # checkpoint or the base model, and make what is missing again.
        case "weights" | "weights-mapped" if not kept.snapshots:
            return "its experiment has ended, and nobody generates with it any more"
        case "artifact" if kept.artifacts is not None and path.name not in kept.artifacts:
            return "no event names it"
        case "snapshot" if not kept.snapshots:
            return "nobody folds it again"
        case "dataset-copy" if not kept.snapshots:
            return "its experiment has ended, and a replay copies the file anew"
        case kind if kind.endswith(_PARTIAL):
            return "it was never finished"
        case "checkpoint-replaced" if str(path.with_name(path.name.split(".")[1])) in there:
            return "another took its place"
        case "workplace-left" if _place_of(path) in there or _place_of(path) not in kept.checkpoints | kept.weights:
            return "a trainer ended while it worked on it"
        case _:
            return ""


def _listed(folder: Path, patterns: Sequence[tuple[str, re.Pattern[str]]]) -> Iterator[OwnFile]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for path in entries:
        for kind, pattern in patterns:
            if (match := pattern.fullmatch(path.name)) is not None:
                epoch = int(match.groupdict().get("epoch") or 0)
                yield _found(kind, path, epoch)
                break


def _worked(folder: Path) -> Iterator[OwnFile]:
    """The things that trainers left in their workplaces, and the empty workplaces."""
    with contextlib.suppress(OSError):
        for path in sorted(each for each in folder.iterdir() if epoch_of(each.name)):
            left = list(left_in(path))
            yield from (_found(_LEFT, each, epoch_of(path.name)) for each in left)
            if not left:
                yield _found(_WORKPLACE, path, epoch_of(path.name))


def _place_of(left: Path) -> str:
    """The path from which a thing in a workplace came, or to which it was to go."""
    folder = next(above for above in left.parents if not epoch_of(above.name))
    return str(folder / original_of(left.name))


def _found(kind: str, path: Path, epoch: int) -> OwnFile:
    size_bytes, modified_ns = _weight(path)
    return OwnFile(kind=kind, path=str(path), size_bytes=size_bytes, modified_ns=modified_ns, epoch=epoch)


def _weight(path: Path) -> tuple[int, int]:
    """The bytes of a file, or of all files below a folder, and the time at which the newest was written (ns)."""
    size_bytes = modified_ns = 0
    for each in (path, *(path.rglob("*") if path.is_dir() and not path.is_symlink() else ())):
        try:
            status = each.lstat()  # of a link itself: what it leads to is not ours
        except OSError:
            continue  # removed meanwhile
        modified_ns = max(modified_ns, status.st_mtime_ns)
        size_bytes += 0 if stat.S_ISDIR(status.st_mode) else status.st_size
    return size_bytes, modified_ns


def _shared(spec: ExperimentSpec) -> set[Path]:
    """The folders in memory in which its weights may lie, by the stages that ask for them."""
    asked = {stage.synchronizer.memory_dir for stage in spec.stages if stage.synchronizer.sync_method == "memory"}
    return {shared_folder(spec.job_dir, memory_dir) for memory_dir in asked}


def _folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir() and re.fullmatch("[0-9a-f]{2}", path.name)]
    except OSError:
        return []


async def referenced_in(log: EventLog, experiment: UUID, *, artifacts: bool) -> Referenced:
    """The files that the experiment's events name, as far as the log goes now; artifacts only if they are asked for."""
    named = OutsideNames()
    own = OwnRecords(log, experiment)
    # Artifacts are named by experiences, which are nearly all of the log; everything else by a few keyed partitions.
    few = {partition_of(name, experiment) for name in topics.KEYED}
    until = await closed_heads(log)
    for partition in topics.EVENTS:
        if partition in until and (artifacts or partition in few):
            async for chunk in own.chunks(partition, until[partition].next_offset):
                for record in chunk:
                    named.take(record)
    return Referenced(
        checkpoints=frozenset(event.path for event in named.undeleted_checkpoints()),
        weights=frozenset(event.path for event in named.kept_weights()),
        artifacts=frozenset(sha256.hex() for sha256 in named.artifacts) if artifacts else None,
        snapshots=not named.spine.ended,
    )
