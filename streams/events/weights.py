"""Announcements of weights. Published and retired by the trainer, activated by explorers."""

from __future__ import annotations

from uuid import UUID

from rftd.streams import topics
from rftd.streams.events.registry import Event, event


@event("weights.published", stream=topics.WEIGHTS)
class WeightsPublished(Event, frozen=True, kw_only=True):
    """(version, generation) can be loaded; without its step on the spine it has no effect (version 0 is the base)."""

    version: int
    generation: int
    stage: int
    method: str
    """The weight channel that carries them."""
    path: str
    """Where the channel finds them; for `checkpoint` a folder with model.safetensors and manifest.json, for
    `memory` a file that is mapped."""
    manifest: str
    """xxh3-128 of the manifest; an explorer echoes it."""
    checksum: str
    size_bytes: int
    host: str = ""
    """The machine in whose memory they lie; empty if every machine that sees the path can read them."""


@event("weights.retired", stream=topics.WEIGHTS)
class WeightsRetired(Event, frozen=True, kw_only=True):
    """The files of (version, generation) are gone; the version can be recomputed from the log."""

    version: int
    generation: int
    reason: str
    lost: bool = False
    """True if they went with the memory of a machine, and not because nobody needs them: a later version serves."""


@event("weights.activated", stream=topics.WEIGHTS)
class WeightsActivated(Event, frozen=True, kw_only=True):
    """A worker generates with (version, generation) from now on."""

    worker: UUID
    version: int
    generation: int
    manifest: str
    checksum: str
    duration_s: float
