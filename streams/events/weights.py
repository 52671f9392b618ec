"""Announcements of weights. Published and retired by the trainer, activated by explorers.

With `sync_style: explorer_driven` the dispatcher requests weights at each sync point and the trainer answers.
"""

from __future__ import annotations

from uuid import UUID

from rftd.streams.events.registry import DISPATCHER, NOBODY, TRAINER, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Bytes, Finite, Index, Seconds
from rftd.streams.log.marked import OwnPath


@event("weights.published", stream=topics.WEIGHTS, owner=TRAINER)
class WeightsPublished(Event, frozen=True, kw_only=True):
    """(version, generation) can be loaded; without its step on the spine it has no effect (version 0 is the base)."""

    version: Index
    """Weight version."""
    generation: Index
    """Generation of the trainer."""
    stage: Index
    """Index of the stage in the specification."""
    method: str
    """The weight channel of the publication."""
    path: OwnPath
    """The path for the channel; for `checkpoint` a folder with model.safetensors and manifest.json, for `memory` a file
    mapped into memory.
    """
    manifest: str
    """xxh3-128 of the manifest; an explorer echoes it."""
    checksum: str
    """Checksum of the published bytes."""
    size_bytes: Bytes
    """Size of the weights in bytes."""
    host: str = ""
    """The machine with the weights in memory; empty if every machine with access to the path can read them."""
    trained: str = ""
    """The checksum of the weights' step, if different: the published ones were rounded to the explorers' dtype, or the
    trainer's checksum has another form, computed on its device.
    """
    duration_s: Seconds = 0.0
    """Seconds spent bringing the weights to the explorers' channel."""

    @property
    def step_checksum(self) -> str:
        """The checksum of the weights in step.completed; for version 0, of the base model."""
        return self.trained or self.checksum


@event("weights.retired", stream=topics.WEIGHTS, owner=TRAINER)
class WeightsRetired(Event, frozen=True, kw_only=True):
    """The deletion of the files of (version, generation); the version can be recomputed from the log."""

    version: Index
    """Retired weight version."""
    generation: Index
    """Generation of the trainer."""
    reason: str
    """Reason for the deletion of the weights, in words for people."""
    lost: bool = False
    """True if the files were lost with the memory of a machine, rather than no longer needed: a later version serves.
    """


@event("weights.activated", stream=topics.WEIGHTS, owner=NOBODY)
class WeightsActivated(Event, frozen=True, kw_only=True):
    """The switch of a worker to (version, generation) for all further generation, with the durations of the switch."""

    worker: UUID
    """Id of the worker."""
    version: Index
    """Weight version."""
    generation: Index
    """Generation of the trainer."""
    manifest: str
    """The xxh3-128 of the manifest."""
    checksum: str
    """Checksum of the weights."""
    duration_s: Seconds
    """Seconds from the worker's decision to load the weights until rollouts continue with them."""
    transfer_s: Seconds = 0.0
    """The part spent fetching and verifying, while the engine continued; 0 if the engine does not report it."""
    resume_s: Seconds = 0.0
    """The part from the end of loading until waiting rollouts may begin."""


@event("weights.requested", stream=topics.EXPERIMENTS, owner=DISPATCHER)
class WeightsRequested(Event, frozen=True, kw_only=True):
    """The request for newer weights after explorers have finished a window. Written by the dispatcher."""

    stage: Index
    """Index of the stage in the specification."""
    window: Index
    """The window waiting to begin."""
    number: Index
    """The request's number for this window, from 0: it is repeated if the answer was too old to train on."""
    version: Index
    """The version of the explorers."""


@event("weights.answered", stream=topics.WEIGHTS, owner=TRAINER)
class WeightsAnswered(Event, frozen=True, kw_only=True):
    """The trainer's answer to weights.requested: its newest version, published before; unchanged if it has no newer
    one.
    """

    stage: Index
    """Index of the stage in the specification."""
    window: Index
    """Number of the window."""
    number: Index
    """Number of the answered request among the requests for this window, from 0."""
    version: Index
    """Weight version."""


@event("weights.overdue", stream=topics.EXPERIMENTS, owner=DISPATCHER)
class WeightsOverdue(Event, frozen=True, kw_only=True):
    """The end of the explorers' wait at a sync point after `sync_timeout`. Written by the dispatcher."""

    stage: Index
    """Index of the stage in the specification."""
    window: Index
    """The window waiting to begin."""
    wanted: Index
    """The version waited for; -1: any newer one."""
    version: Index
    """The version used by the window instead; -1: the wait continues, as nothing older could be trained."""
    waited_s: Finite
    """Seconds waited."""
    reason: str
    """Reason why newer weights did not come in time, in words for people."""


def order_of(event: WeightsRequested | WeightsAnswered) -> tuple[int, int, int]:
    """Returns the sort key of a request (stage, window, number); an answer has the key of its request."""
    return event.stage, event.window, event.number
