"""Announcements of weights. Published and retired by the trainer, activated by explorers.

With `sync_style: explorer_driven` the dispatcher asks for weights at each sync point and the trainer answers.
"""

from __future__ import annotations

from uuid import UUID

from rftd.streams.events.registry import DISPATCHER, NOBODY, TRAINER, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Bytes, Finite, Index, Seconds
from rftd.streams.log.stored_path import OwnPath


@event("weights.published", stream=topics.WEIGHTS, owner=TRAINER)
class WeightsPublished(Event, frozen=True, kw_only=True):
    """(version, generation) can be loaded; without its step on the spine it has no effect (version 0 is the base)."""

    version: Index
    generation: Index
    stage: Index
    method: str
    """The weight channel that carries them."""
    path: OwnPath
    """The place where the channel finds them; for `checkpoint` a folder with model.safetensors and manifest.json, for
    `memory` a file that is mapped."""
    manifest: str
    """xxh3-128 of the manifest; an explorer echoes it."""
    checksum: str
    size_bytes: Bytes
    host: str = ""
    """The machine in whose memory they lie; empty if every machine that sees the path can read them."""
    trained: str = ""
    """The checksum of the step that made them, if it is another: they were rounded to the dtype that explorers run them
    in, or the trainer's is of another form, made on its device."""
    duration_s: Seconds = 0.0
    """The time that it took to bring them where explorers find them."""

    @property
    def step_checksum(self) -> str:
        """The checksum that step.completed has of the weights; of version 0 the base model's."""
        return self.trained or self.checksum


@event("weights.retired", stream=topics.WEIGHTS, owner=TRAINER)
class WeightsRetired(Event, frozen=True, kw_only=True):
    """The files of (version, generation) are gone; the version can be recomputed from the log."""

    version: Index
    generation: Index
    reason: str
    lost: bool = False
    """True if they went with the memory of a machine, and not because nobody needs them: a later version serves."""


@event("weights.activated", stream=topics.WEIGHTS, owner=NOBODY)
class WeightsActivated(Event, frozen=True, kw_only=True):
    """A worker generates with (version, generation) from now on."""

    worker: UUID
    version: Index
    generation: Index
    manifest: str
    checksum: str
    duration_s: Seconds
    """The time from the worker's decision to load them until rollouts go on with them."""
    transfer_s: Seconds = 0.0
    """The part of it in which they were fetched and verified, while the engine went on; 0: its engine does not say."""
    resume_s: Seconds = 0.0
    """The part of it from the engine's having them until rollouts that waited may begin."""


@event("weights.requested", stream=topics.EXPERIMENTS, owner=DISPATCHER)
class WeightsRequested(Event, frozen=True, kw_only=True):
    """Explorers have finished a window and ask for newer weights. Written by the dispatcher."""

    stage: Index
    window: Index
    """The window that waits to begin."""
    number: Index
    """The request's number for this window, from 0: it is made again if the answer was too old to train on."""
    version: Index
    """The version that explorers have."""


@event("weights.answered", stream=topics.WEIGHTS, owner=TRAINER)
class WeightsAnswered(Event, frozen=True, kw_only=True):
    """The trainer's answer to weights.requested: its newest version, published before; the same one if it has none."""

    stage: Index
    window: Index
    number: Index
    version: Index


@event("weights.overdue", stream=topics.EXPERIMENTS, owner=DISPATCHER)
class WeightsOverdue(Event, frozen=True, kw_only=True):
    """Explorers have waited at a sync point for `sync_timeout`. Written by the dispatcher."""

    stage: Index
    window: Index
    """The window that waits to begin."""
    wanted: Index
    """The version that was waited for; -1: any that is newer."""
    version: Index
    """The version that the window runs on instead; -1: it goes on waiting, for nothing older could be trained."""
    waited_s: Finite
    reason: str


def order_of(event: WeightsRequested | WeightsAnswered) -> tuple[int, int, int]:
    """The place of a request among those of its experiment; an answer has that of its request."""
    return event.stage, event.window, event.number
