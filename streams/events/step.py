"""What training did. step.completed is written by the trainer, eval.completed by the dispatcher, on the spine."""

from __future__ import annotations

from uuid import UUID

from rftd.streams import topics
from rftd.streams.events.registry import Event, event


@event("step.completed", stream=topics.EXPERIMENTS)
class StepCompleted(Event, frozen=True, kw_only=True):
    """Batch `batch` was trained: weight version `step` of generation `generation` exists (rule 3)."""

    batch: UUID
    step: int
    stage: int
    generation: int
    checksum: str
    """xxh3-128 over name, dtype, shape and bytes of every tensor, in name order."""
    sha256: str | None = None
    """The same by sha256: in deterministic mode and at checkpoints."""
    items: int
    """Experiences and rows of the plan; a row of preferences is two sequences."""
    tokens: int
    """Tokens with a gradient."""
    duration_s: float
    metrics: dict[str, float] = {}
    skipped: str = ""
    """Why nothing was trained, so that the weights are those of the version before; empty if something was."""


@event("eval.completed", stream=topics.EXPERIMENTS)
class EvalCompleted(Event, frozen=True, kw_only=True):
    """A held-out taskset was answered greedily (or as its rollout_args say) by one weight version."""

    eval: UUID
    stage: int
    taskset: str
    version: int
    generation: int
    rows: int
    score: float
    """Mean reward."""
    metrics: dict[str, float] = {}


@event("generation.started", stream=topics.EXPERIMENTS)
class GenerationStarted(Event, frozen=True, kw_only=True):
    """A trainer took up the history at weight version `version`; planned batches after it are executed (again).

    Written by the trainer after its fence, before its first step. Nothing is planned until the last planned batch is
    reached (rule 8).
    """

    generation: int
    """0 for the first trainer of the experiment."""
    version: int
    checkpoint: str = ""
    """The folder it resumed from; empty for the base model."""
    reason: str = ""
    """Why a newer checkpoint was not used, if one was not."""
    checksum: str = ""
    """Of weights that another experiment's history made (a fork's first ones), as this generation computed them."""
    environment: dict[str, str] = {}
    """What the bits of its weights may depend on: releases of the libraries, threads, the processor's abilities."""
