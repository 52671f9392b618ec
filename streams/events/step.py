"""Steps, evaluations and generations, on the spine. The dispatcher writes eval.completed, the trainer the others."""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

import msgspec

from rftd.streams.events.registry import DISPATCHER, TRAINER, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Count, Finite, Index, Offset, Seconds
from rftd.streams.log.marked import DIGEST, OwnPath


class SpineMark(msgspec.Struct, frozen=True, array_like=True):
    """The digest of the part of the spine already read by a trainer: see `rftd.streams.log.spine_digest`."""

    start: Offset
    """The offset of the first record covered."""
    end: Offset
    """The offset after the last record covered."""
    digest: bytes
    """Digest of the covered records."""


EQUAL_GROUPS: Final = "signal/equal_groups"
"""The share of a batch's groups with one reward for all rollouts; for single rollouts, 1 if the whole batch has one
reward.
"""
PROMPTS_CUT: Final = "signal/prompts_cut"
"""The share of rollouts with a prompt over `max_prompt_tokens`, which are not trained."""
ANSWERS_CUT: Final = "signal/answers_cut"
"""The share of rollouts with an answer ended at its length limit."""
ANSWERS_EMPTY: Final = "signal/answers_empty"
"""The share of rollouts ended by the model with at most one token, the end token."""
SHARES: Final = frozenset((EQUAL_GROUPS, PROMPTS_CUT, ANSWERS_CUT, ANSWERS_EMPTY))
"""The figures of a step with experiences about the strength of its learning signal."""
EQUAL_PAIRS: Final = "rows/equal_pairs"
"""The share of a batch's pairs with identical tokens in both answers, without a learning signal; only if there are
some.
"""
ROW_PROMPTS_CUT: Final = "rows/prompts_cut"
"""The share of a batch's rows with a prompt leaving no room for an answer, without a learning signal; only if there are
some.
"""
ROW_ANSWERS_CUT: Final = "rows/answers_cut"
"""The share of a batch's rows with a truncated answer, unable to teach the end; only if there are some."""
PROMPTS_CUT_ROWS: Final = "prompts_cut_rows"
"""Number of an evaluation's rows with a truncated prompt, which score 0; only if there are some."""
WORTHLESS: Final = ("failed_rows", PROMPTS_CUT_ROWS)
"""Counts of answers without any score; reported only if above 0."""


@event("step.completed", stream=topics.EXPERIMENTS, owner=TRAINER)
class StepCompleted(Event, frozen=True, kw_only=True):
    """Batch `batch` was trained: weight version `step` of generation `generation` exists."""

    batch: UUID
    """Id of the batch."""
    step: Index
    """Training step, as the weight version made by it."""
    stage: Index
    """Index of the stage in the specification."""
    generation: Index
    """Generation of the trainer."""
    checksum: str
    """Over name, dtype, shape and bits of every tensor: by xxh3-128 on a CPU, `bits:...` for tensors on a device."""
    sha256: str | None = None
    """`tensors:...`: the checksum by sha256, in deterministic mode and at checkpoints."""
    items: Count
    """Experiences and rows of the plan; a row of preferences is two sequences."""
    tokens: Count
    """Tokens with a gradient."""
    duration_s: Seconds
    """Duration in seconds."""
    metrics: dict[str, float] = {}
    """Figures of the step, by name."""
    skipped: str = ""
    """Reason for skipping the update, leaving the weights of the previous version; empty for a trained step."""
    spine: Annotated[SpineMark | None, DIGEST] = None
    """The digest of the spine below this event, as read by its trainer."""
    announced: Annotated[bytes | None, DIGEST] = None
    """The digest of the newest announcement of weights read by its trainer (`rftd.streams.log.announcement`)."""


@event("eval.completed", stream=topics.EXPERIMENTS, owner=DISPATCHER)
class EvalCompleted(Event, frozen=True, kw_only=True):
    """The figures of a held-out taskset answered greedily (or by its rollout_args) with one weight version."""

    eval: UUID
    """Id of the evaluation."""
    stage: Index
    """Index of the stage in the specification."""
    taskset: str
    """Name of the held-out taskset."""
    version: Index
    """Weight version."""
    generation: Index
    """Generation of the trainer."""
    rows: Count
    """Number of answered rows."""
    score: Finite
    """Mean reward."""
    metrics: dict[str, float] = {}
    """Figures of the evaluation, by name."""


@event("generation.started", stream=topics.EXPERIMENTS, owner=TRAINER)
class GenerationStarted(Event, frozen=True, kw_only=True):
    """A trainer resumed the history at weight version `version`; planned batches after it are executed (again).

    Written by the trainer after its fence, before its first step. Nothing is planned until the last planned batch is
    reached.
    """

    generation: Index
    """0 for the first trainer of the experiment."""
    version: Index
    """Weight version."""
    checkpoint: OwnPath = ""
    """The folder used for resuming; empty for the base model."""
    reason: str = ""
    """Reason for not using a newer checkpoint; empty without one."""
    checksum: str = ""
    """The checksum of weights made by another experiment's history (a fork's first ones), as computed here."""
    environment: dict[str, str] = {}
    """Everything able to influence the bits of the weights: releases of libraries, threads, the processor's abilities.
    """
