"""Durable points for resuming a training. Written by the trainer."""

from __future__ import annotations

from typing import Annotated

import msgspec

from rftd.streams.events.experiment import HeadRef
from rftd.streams.events.registry import TRAINER, Event, event
from rftd.streams.events.step import SpineMark
from rftd.streams.log import topics
from rftd.streams.log.bounds import Bytes, Index, Seconds
from rftd.streams.log.marked import DIGEST, HEADS, OwnPath, RelativePath


class FileRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One file of a checkpoint: path relative to the checkpoint's folder, size and sha256."""

    path: RelativePath
    """Path relative to the checkpoint's folder."""
    size_bytes: Bytes
    """Size of the file in bytes."""
    sha256: str
    """The sha256, in hex."""


@event("checkpoint.committed", stream=topics.CHECKPOINTS, owner=TRAINER)
class CheckpointCommitted(Event, frozen=True, kw_only=True):
    """A checkpoint at `path` for resuming after step `step`: every file is on disk and matches the listed digest."""

    step: Index
    """Training step, as the weight version made by it."""
    generation: Index
    """Generation of the trainer."""
    stage: Index
    """Index of the stage in the specification."""
    stage_step: Index
    """N of the folder `global_step_N`, counted within the stage."""
    path: OwnPath
    """Folder of the checkpoint."""
    files: tuple[FileRef, ...]
    """Files of the checkpoint."""
    size_bytes: Bytes
    """Total size of the files in bytes."""
    checksum: str
    """The checksum of the weights, as in step.completed."""
    sha256: str
    """The weights' checksum by sha256, as in step.completed."""
    final: bool = False
    """True for the stage's last checkpoint."""
    heads: Annotated[tuple[HeadRef, ...], HEADS] = ()
    """Heads of the log once the checkpoint's files were in place."""
    spine: Annotated[SpineMark | None, DIGEST] = None
    """The digest of the spine, as in step.completed."""
    duration_s: Seconds = 0.0
    """Seconds from the beginning of the checkpoint until its files were durable and in place."""


@event("checkpoint.deleted", stream=topics.CHECKPOINTS, owner=TRAINER)
class CheckpointDeleted(Event, frozen=True, kw_only=True):
    """The deletion of a checkpoint's folder, by retention."""

    step: Index
    """Training step, as the weight version made by it."""
    generation: Index
    """Generation of the trainer."""
    path: OwnPath
    """Folder of the checkpoint."""
    reason: str
    """Reason for the deletion of the checkpoint, in words for people."""
