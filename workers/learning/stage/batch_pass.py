"""The pass over a complete batch before its first optimizer step, without gradients, for values that depend on more
than one micro-batch.

Only objectives with such values cost the pass, and only for the needed fields. Values are computed over the
micro-batches' tokens in order, and passed to the micro-batches of each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from rftd.ops.errors import ConfigError
from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.learning.corrections.correction import Corrected
from rftd.workers.learning.losses.batch_tokens import BatchTokens
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.stage.learner import Learner, M
from rftd.workers.learning.stage.micro_batch import Ints, MicroBatch, ranges
from rftd.workers.learning.stage.mismatched import reference_kl
from rftd.workers.learning.token_advantages.penalised import penalised
from rftd.workers.learning.token_advantages.token_advantage import PassField, ValueAdvantage


@dataclass(frozen=True, kw_only=True, slots=True)
class Passed:
    """Values computed over the complete batch, for the tokens of one micro-batch; None: the micro-batch's own column is
    used.
    """

    advantages: Tensor | None = None  # [N]
    start_logprobs: Tensor | None = None  # [N], if other steps follow and the loss asks for them
    ref_logprobs: Tensor | None = None  # [N]
    multiplier: Tensor | None = None  # [N]
    keep: Tensor | None = None  # [N] bool
    marked: Tensor | None = None  # [N] bool
    reference_kl: Tensor | None = None  # [], of responses to prompts that they do not answer
    values: Tensor | None = None  # [N], the critic's before the step
    returns: Tensor | None = None  # [N], what the critic learns


@dataclass(frozen=True, slots=True)
class BatchPass:
    """The values of the batch's N trained tokens computed before its first step, and figures to report."""

    columns: Passed
    """Values of all trained tokens of the batch."""
    starts: Ints  # [B], where the tokens of each sample begin
    metrics: dict[str, float]
    """Figures to report, by name."""

    def of(self, micro: MicroBatch) -> Passed:
        """Returns the values of a micro-batch's tokens, in the micro-batch's order; fields not computed are None."""
        columns = {column.name: getattr(self.columns, column.name) for column in fields(Passed)}
        columns = {name: column for name, column in columns.items() if column is not None}
        if not columns:
            return self.columns
        places = ranges(self.starts[micro.members], micro.counts())
        return Passed(
            **{
                name: column.index_select(0, to_device(places, column.device)) if column.ndim else column
                for name, column in columns.items()
            }
        )


@torch.no_grad()
def batch_pass(
    objective: Objective,
    learner: Learner[M],
    micro_batches: Sequence[M],
    *,
    version: int,
    penalty_coef: float,
    several_steps: bool,
    mismatched: Sequence[M] = (),
) -> BatchPass:
    """Computes the fields needed by the objective over the complete batch, and figures; without a need, returns an
    empty pass at no cost.

    `micro_batches` have each sample once; `version` is the weights' before the batch; `penalty_coef` is the KL
    penalty's coefficient for this batch; `several_steps` is True if the batch is trained in several optimizer steps;
    `mismatched` are its responses after other prompts. Raises ConfigError for advantages of a wrong shape.
    """
    starts = _starts(micro_batches)
    needed = objective.fields_before(several_steps=several_steps)
    packed = [micro for micro in micro_batches if len(micro.targets)]
    kl = reference_kl(learner, mismatched) if mismatched and objective.needs_reference else None
    # Most objectives end here: a pass costs about a third of a training step.
    if not packed or not (needed or objective.token_advantage):
        return BatchPass(Passed(reference_kl=kl), starts, {})
    batch = _tokens(learner, packed, version=version, needed=needed)
    metrics: dict[str, float] = {}
    advantages: Tensor | None = None
    if objective.kl_penalty.coef > 0:
        assert batch.ref_logprobs is not None
        penalty = objective.kl_penalty.estimate(batch.old_logprobs, batch.ref_logprobs, batch.old_logprobs)
        # Rows of a dataset were drawn by nobody, so there is no policy of theirs to hold to the reference.
        penalty = penalty.masked_fill(batch.expert, 0.0)
        advantages = batch.advantages - penalty_coef * penalty
        if objective.penalised_advantage is not None:
            advantages = _penalised(objective.penalised_advantage, micro_batches, penalty_coef * penalty)
        batch = replace(batch, penalties=penalty_coef * penalty, advantages=advantages)
        metrics |= {"critic/kl": float(penalty.mean()), "critic/kl_coef": penalty_coef}
    if objective.token_advantage is not None:
        advantages = objective.token_advantage.token_advantages(batch)
        # Checked before it is used: a third party's [N, 1] would be broadcast to [N, N] without a word.
        _check_shape(advantages, batch)
        advantages = advantages.masked_fill(batch.expert, 0.0)
    # Token advantages are whitened; the critic's target is made of what they were before that, and of the penalties.
    before = batch
    if advantages is not None:
        batch = replace(batch, advantages=advantages)
        metrics |= _advantage_figures(advantages)
    returns = None
    if batch.values is not None and isinstance(objective.token_advantage, ValueAdvantage):
        # What the advantages began from is what the critic learns: before they are whitened.
        returns = batch.values + objective.token_advantage.estimate(before)
        metrics |= {"critic/values/mean": float(batch.values.mean()), "critic/returns/mean": float(returns.mean())}
    corrected = objective.correction.of_batch(batch) if batch.logprobs is not None else Corrected()
    columns = Passed(
        advantages=advantages,
        # A single step has the weights of this pass: its own forward gives these log-probabilities, with a gradient.
        start_logprobs=batch.logprobs if several_steps and objective.correction.decoupled else None,
        ref_logprobs=batch.ref_logprobs,
        reference_kl=kl,
        multiplier=corrected.multiplier,
        keep=corrected.keep,
        marked=corrected.marked,
        values=batch.values,
        returns=returns,
    )
    return BatchPass(columns, starts, metrics)


def _advantage_figures(advantages: Tensor) -> dict[str, float]:
    """Returns mean, maximum and minimum of the advantages."""
    return {
        "critic/advantages/mean": float(advantages.mean()),
        "critic/advantages/max": float(advantages.max()),
        "critic/advantages/min": float(advantages.min()),
    }


def _penalised(function: AdvantageFunction, micro_batches: Sequence[MicroBatch], penalties: Tensor) -> Tensor:
    """Returns advantages by rewards less each response's penalties, equal for all of its tokens  # [N] -> [N]"""
    # Micro-batches hold samples in an order of their own; `members` leads back to the batch's.
    owner = np.concatenate([micro.members[micro.sequence] for micro in micro_batches])  # [N]
    members = np.concatenate([micro.members for micro in micro_batches])
    rewards = np.zeros(len(members), np.float32)
    rewards[members] = np.concatenate([micro.rewards for micro in micro_batches])
    groups = np.zeros(len(members), np.int64)
    groups[members] = np.concatenate([micro.groups for micro in micro_batches])
    # bincount sums in float64, and in one order on every device: a scatter on a GPU does not.
    summed = np.bincount(owner, penalties.double().cpu().numpy(), minlength=len(members)).astype(np.float64)
    return to_device(penalised(function, rewards, groups, summed)[owner], penalties.device)


def _starts(micro_batches: Sequence[MicroBatch]) -> Ints:
    """Returns the index of each sample's first token among the tokens of all micro-batches  # [B]"""
    members = np.concatenate([np.zeros(0, np.int64), *(micro.members for micro in micro_batches)])
    counts = np.concatenate([np.zeros(0, np.int64), *(micro.counts() for micro in micro_batches)])
    starts = np.zeros(len(members), np.int64)
    starts[members] = np.cumsum(counts) - counts
    return starts


def _tokens(learner: Learner[M], packed: Sequence[M], *, version: int, needed: frozenset[PassField]) -> BatchTokens:
    """Computes the needed fields of all trained tokens of the batch."""
    values = learner.values(packed, needed)
    return replace(
        carried(packed, learner.device, version=version),
        logprobs=joined([columns.logprobs for columns in values]),
        entropies=joined([columns.entropies for columns in values]),
        ref_logprobs=joined([columns.ref_logprobs for columns in values]),
        teacher_logprobs=joined([columns.teacher_logprobs for columns in values]),
        values=joined([columns.values for columns in values]),
        entropy_signals=joined([columns.entropy_signals for columns in values]),
        squares=joined([columns.squares for columns in values]),
    )


def joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Concatenates the columns of micro-batches; None if all are None. A field is known for all micro-batches or for
    none.
    """
    columns = [column for column in parts if column is not None]
    return torch.cat(columns) if columns else None


def carried(packed: Sequence[MicroBatch], device: torch.device, *, version: int) -> BatchTokens:
    """Concatenates the micro-batches' stored columns into the tokens of a batch; `version` is the weights' before the
    batch.
    """
    starts = np.cumsum([0, *(micro.sequences for micro in packed)])
    sequences = [micro.sequence + start for micro, start in zip(packed, starts, strict=False)]
    versions = [micro.versions for micro in packed if micro.versions is not None]
    whole = np.concatenate
    return BatchTokens(
        old_logprobs=to_device(whole([micro.old_logprobs for micro in packed]), device),
        advantages=to_device(whole([micro.advantages for micro in packed]), device),
        rewards=to_device(whole([micro.rewards for micro in packed]), device),
        expert=to_device(whole([micro.expert for micro in packed]), device),
        sequence=to_device(whole(sequences), device),
        sequences=int(starts[-1]),
        groups=to_device(whole([micro.groups for micro in packed]), device),
        # Versions of some micro-batches alone are of no use: a correction by age needs them all.
        versions=to_device(whole(versions), device) if len(versions) == len(packed) else None,
        version=version,
    )


def _check_shape(advantages: Tensor, batch: BatchTokens) -> None:
    """Raises ConfigError unless there is one advantage for each token."""
    if advantages.shape != batch.old_logprobs.shape:
        raise ConfigError(
            f"the advantage function gave {tuple(advantages.shape)} for {len(batch.old_logprobs)} tokens",
            field="algorithm.advantage_fn",
            fix="let token_advantages return one value for each trained token of the batch",
        )
