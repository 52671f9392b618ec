"""Steps, evaluations and generations, on the spine. The dispatcher writes eval.completed, the trainer the rest."""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

import msgspec

from rftd.streams.events.registry import DISPATCHER, TRAINER, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Count, Finite, Index, Offset, Seconds
from rftd.streams.log.log_place import DIGEST
from rftd.streams.log.stored_path import OwnPath


class SpineMark(msgspec.Struct, frozen=True, array_like=True):
    """The digest of what a trainer had read of its experiment's spine: see `rftd.streams.log.spine_digest`."""

    start: Offset
    """The offset of the first record that is covered."""
    end: Offset
    """The offset after the last one."""
    digest: bytes


EQUAL_GROUPS: Final = "signal/equal_groups"
"""The share of a batch's groups in which every reward is the same; of single rollouts 1 if all of
the batch have the same."""
PROMPTS_CUT: Final = "signal/prompts_cut"
"""The share of rollouts whose prompt was longer than `max_prompt_tokens`: nothing of them is trained."""
ANSWERS_CUT: Final = "signal/answers_cut"
"""The share of rollouts whose answer ended at its length limit."""
ANSWERS_EMPTY: Final = "signal/answers_empty"
"""The share of rollouts that ended by themselves with at most one token, which is the end itself."""
SHARES: Final = frozenset((EQUAL_GROUPS, PROMPTS_CUT, ANSWERS_CUT, ANSWERS_EMPTY))
"""The figures of a step with experiences that say how much could be learnt from it."""
EQUAL_PAIRS: Final = "rows/equal_pairs"
"""The share of a batch's pairs whose two answers have the same tokens, which teach nothing; only if there are some."""
ROW_PROMPTS_CUT: Final = "rows/prompts_cut"
"""The share of a batch's rows whose prompt left no room for an answer, which teach nothing; only if there are some."""
ROW_ANSWERS_CUT: Final = "rows/answers_cut"
"""The share of a batch's rows with an answer that lost its end, and so teaches no end; only if there are some."""
PROMPTS_CUT_ROWS: Final = "prompts_cut_rows"
"""Of an evaluation: rows whose prompt was cut, which score 0; only if there are some."""


@event("step.completed", stream=topics.EXPERIMENTS, owner=TRAINER)
class StepCompleted(Event, frozen=True, kw_only=True):
    """Batch `batch` was trained: weight version `step` of generation `generation` exists (rule 3)."""

    batch: UUID
    step: Index
    stage: Index
    generation: Index
    checksum: str
    """Over name, dtype, shape and bits of every tensor: by xxh3-128 on a CPU, `bits:...` where they lie on a device."""
    sha256: str | None = None
    """`tensors:...`: the same by sha256, in deterministic mode and at checkpoints."""
    items: Count
    """Experiences and rows of the plan; a row of preferences is two sequences."""
    tokens: Count
    """Tokens with a gradient."""
    duration_s: Seconds
    metrics: dict[str, float] = {}
    skipped: str = ""
    """Why nothing was trained, so that the weights are those of the version before; empty if something was."""
    spine: Annotated[SpineMark | None, DIGEST] = None
    """The digest of the spine below it, as its trainer has read that."""
    announced: Annotated[bytes | None, DIGEST] = None
    """The digest of the newest announcement of weights that its trainer has read (`rftd.streams.log.announcement`)."""


@event("eval.completed", stream=topics.EXPERIMENTS, owner=DISPATCHER)
class EvalCompleted(Event, frozen=True, kw_only=True):
    """A held-out taskset was answered greedily (or as its rollout_args say) by one weight version."""

    eval: UUID
    stage: Index
    taskset: str
    version: Index
    generation: Index
    rows: Count
    score: Finite
    """Mean reward."""
    metrics: dict[str, float] = {}


@event("generation.started", stream=topics.EXPERIMENTS, owner=TRAINER)
class GenerationStarted(Event, frozen=True, kw_only=True):
    """A trainer took up the history at weight version `version`; planned batches after it are executed (again).

    Written by the trainer after its fence, before its first step. Nothing is planned until the last planned batch is
    reached (rule 8).
    """

    generation: Index
    """0 for the first trainer of the experiment."""
    version: Index
    checkpoint: OwnPath = ""
    """The folder it resumed from; empty for the base model."""
    reason: str = ""
    """Why a newer checkpoint was not used, if one was not."""
    checksum: str = ""
    """The checksum of weights that another experiment's history made (a fork's first ones), as computed here."""
    environment: dict[str, str] = {}
    """All that the bits of its weights may depend on: releases of the libraries, threads, the processor's abilities."""
