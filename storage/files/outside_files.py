"""Checks of an experiment's checkpoints and artifacts against events: `rftd verify --files`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rftd.ops.errors import DataError
from rftd.storage.files.artifacts import ArtifactStore, size_and_sha256
from rftd.storage.files.checkpoint_witness import read_witness
from rftd.storage.files.checkpoints import LATEST_CHECKPOINT, LATEST_WEIGHTS, marked_step
from rftd.storage.files.own_places import is_own_checkpoint
from rftd.storage.files.served_history import FILE, difference_of, promises
from rftd.storage.files.service_state import PATH as STATE
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.log.chain import Mark
from rftd.streams.log.marked import moved
from rftd.streams.log.topics import Partition
from rftd.streams.portable.folders import Folders
from rftd.streams.verify.outside import Memory, Missing, Outside

_REMEMBERED_ARTIFACTS: Final = 1 << 17
"""Maximum remembered digests: equal arrays share one file, read only once."""
_CHECKPOINT: Final = re.compile(r"global_step_[0-9]{1,12}")
"""Form of a checkpoint folder's name."""


def below(files: Path, outside: Outside) -> Outside:
    """Returns the files of an experiment in a backup, each at the absolute path below the folder `files`."""
    folders = Folders([("/", str(files))])
    return outside._replace(
        spec=moved(outside.spec, folders.path),
        checkpoints=tuple(moved(event, folders.path) for event in outside.checkpoints),
        weights=tuple(moved(event, folders.path) for event in outside.weights),
        left_out=frozenset(folders.path(path) for path in outside.left_out),
    )


def missing_checkpoints(outside: Outside) -> Iterator[Missing]:
    """Yields every missing, longer, shorter or altered file of every checkpoint. Reads everything; blocks."""
    newest = {event.path: event for event in sorted(outside.checkpoints, key=lambda committed: committed.generation)}
    for event in newest.values():  # a checkpoint saved again, in a later generation, replaced the earlier one
        name = f"the checkpoint of step {event.step} of generation {event.generation}"
        if not is_own_checkpoint(outside.spec, event.path):  # without reading any of it
            yield Missing(event.path, f"{name} is named at {event.path}, where the experiment keeps none")
            continue
        if is_left_out(outside, event.path):
            continue
        for damage in _damage(event):
            yield Missing(event.path, f"{name}: {damage}")


def nameless_checkpoints(outside: Outside) -> Iterator[Missing]:
    """Yields the checkpoint folders of an ended run without an event: the event is lost, or a crash left the folder."""
    named = {event.path for event in outside.checkpoints}
    for path in _folders(outside) if outside.ended else ():
        if str(path) not in named:
            cause = "its event is gone, or a crash left it (then `rftd gc` removes it)"
            yield Missing(str(path), f"{path} is a checkpoint that no event names: {cause}")


def is_left_out(outside: Outside, path: str) -> bool:
    """True if an export or a backup left the folder out, and the folder is still missing."""
    return path in outside.left_out and not Path(path).exists()


def wrong_markers(outside: Outside) -> Iterator[Missing]:
    """Yields each `latest_*_iteration.txt` without a step, with a missing checkpoint, or not naming an ended stage's
    last one.
    """
    named = {event.path for event in outside.checkpoints}
    last = {Path(event.path).parent: event for event in outside.checkpoints if event.final}
    for job_dir in _job_dirs(outside):
        for name in (LATEST_CHECKPOINT, LATEST_WEIGHTS):
            marker = job_dir / name
            try:
                step = marked_step(marker)
            except (DataError, OSError) as error:
                yield Missing(
                    str(marker), f"{marker}: {error.what if isinstance(error, DataError) else error.strerror}"
                )
                continue
            final = last.get(job_dir)
            folder = job_dir / f"global_step_{step}"
            if step is not None and str(folder) not in named and not folder.is_dir():
                yield Missing(str(folder), f"{marker} names step {step}, and there is no {folder}")
            elif final is not None and step != final.stage_step and Path(final.path).is_dir():
                says = "is missing" if step is None else f"names step {step}"
                yield Missing(str(marker), f"{marker} {says}: the last checkpoint is {final.path}")


def lost_promises(outside: Outside) -> Iterator[Missing]:
    """Yields every served history without all promised rows: rows with an acknowledged commit. Blocks."""
    for folder, promised in promises(outside.spec, outside.offers).items():
        path = folder / FILE
        # An ended experiment trains no more rows, and the archive holds the file.
        if outside.ended and not path.exists():
            continue
        if difference := difference_of(path, promised):
            yield Missing(str(path), f"the history of stage {promised.stage}, {path}, {difference}")


def memories(outside: Outside) -> list[Memory]:
    """Returns the remembered heads of all checkpoint folders, named by an event or not; the newest last. Blocks."""
    remembered = []
    for path in _folders(outside):
        witness = read_witness(path)
        if witness is not None and witness.experiment == outside.experiment:
            heads = {Partition(ref.stream, ref.partition): Mark(ref.next_offset, ref.chain) for ref in witness.heads}
            remembered.append(Memory(str(path), witness.step, witness.generation, heads, witness.spine))
    return sorted(remembered, key=lambda memory: (memory.step, memory.generation))


def not_looked_at(outside: Outside) -> dict[str, int]:
    """Counts the checkpoints and weights without bytes in local files, by kind and location."""
    counts: Counter[str] = Counter()
    for event in outside.checkpoints:
        # The files here only name weights and optimizer; only the service knows about their existence.
        if any(file.path == STATE for file in event.files):
            counts["checkpoints at a service"] += 1
        if is_left_out(outside, event.path):
            counts["checkpoints that an export or a backup left out"] += 1
    for weights in outside.weights:
        if not outside.ended and is_left_out(outside, weights.path):
            counts["weights that an export or a backup left out"] += 1
        if weights.method != "checkpoint":
            counts["weights at a service" if weights.method == "service" else "weights in memory"] += 1
    return dict(sorted(counts.items()))


def missing_artifacts(outside: Outside) -> Iterator[Missing]:
    """Yields every missing artifact, and every artifact with a wrong digest. Reads everything; blocks."""
    store = ArtifactStore(Path(outside.spec.job_dir) / "artifacts")
    checked: dict[str, None] = {}
    for sha256 in outside.artifacts():
        if sha256 in checked:
            continue
        checked[sha256] = None
        if len(checked) > _REMEMBERED_ARTIFACTS:
            del checked[next(iter(checked))]
        path = store.path_of(sha256)  # hexadecimal digits of a digest, so no event can name a path outside of the store
        try:
            _, digest = size_and_sha256(path)
        except OSError as error:
            yield Missing(str(path), f"artifact {sha256} is not at {path}: {error.strerror}")
            continue
        if digest != sha256:
            yield Missing(str(path), f"artifact {path} does not match its name: the sha256 of its bytes is {digest}")


def _job_dirs(outside: Outside) -> list[Path]:
    """Returns the checkpoint folders of the experiment and all stages."""
    stage_folders = (Path(stage.folder) for stage in outside.spec.stages if stage.folder)
    return sorted({Path(outside.spec.job_dir), *stage_folders})


def _folders(outside: Outside) -> Iterator[Path]:
    """Yields every path named like a checkpoint in the experiment's folders."""
    for folder in _job_dirs(outside):
        try:
            yield from sorted(path for path in folder.iterdir() if _CHECKPOINT.fullmatch(path.name))
        except OSError:
            continue


def _damage(event: CheckpointCommitted) -> Iterator[str]:
    """Yields a text for each missing or altered file of a checkpoint."""
    folder = Path(event.path)
    for file in event.files:
        path = folder / file.path
        if not path.resolve().is_relative_to(folder.resolve()):
            yield f"{file.path!r} lies outside of {folder}"
            continue
        try:
            size_bytes = path.stat().st_size
            if size_bytes != file.size_bytes:
                yield f"{path} has {size_bytes} bytes instead of {file.size_bytes}"
                continue
            _, digest = size_and_sha256(path)
        except OSError as error:
            yield f"{path} cannot be read: {error.strerror}"
            continue
        if digest != file.sha256:
            yield f"{path} has other bytes than were committed: their sha256 is {digest}"
