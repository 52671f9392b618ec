"""Durable points to resume from. Written by the trainer."""

from __future__ import annotations

import msgspec

from rftd.streams import topics
from rftd.streams.events.experiment import HeadRef
from rftd.streams.events.registry import Event, event


class FileRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One file of a checkpoint, relative to its folder."""

    path: str
    size_bytes: int
    sha256: str


@event("checkpoint.committed", stream=topics.CHECKPOINTS)
class CheckpointCommitted(Event, frozen=True, kw_only=True):
    """Step `step` can be resumed from `path`: every file is on disk and matches its digest."""

    step: int
    generation: int
    stage: int
    stage_step: int
    """N of the folder `global_step_N`, counted within the stage."""
    path: str
    files: tuple[FileRef, ...]
    size_bytes: int
    checksum: str
    """Of the weights, as in step.completed."""
    sha256: str
    final: bool = False
    """The stage's last."""
    heads: tuple[HeadRef, ...] = ()


@event("checkpoint.deleted", stream=topics.CHECKPOINTS)
class CheckpointDeleted(Event, frozen=True, kw_only=True):
    """Its folder is gone, by retention."""

    step: int
    generation: int
    path: str
    reason: str
