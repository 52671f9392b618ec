"""The pass over a whole batch before its step, without gradients: what one micro-batch cannot know.

Only objectives with such a part pay for it, and only for the fields that it needs. Everything is computed over the
micro-batches' tokens in their order, and given back to each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rftd.ops.errors import ConfigError
from rftd.workers.algorithms.advantages.token_advantage import ValueAdvantage
from rftd.workers.algorithms.batch_tokens import BatchTokens
from rftd.workers.algorithms.corrections.correction import Corrected
from rftd.workers.trainer.engines.torch.forward import Passed, logprobs_of, signals_of, tensor
from rftd.workers.trainer.engines.torch.packing import MicroBatch
from rftd.workers.trainer.engines.torch.stage import Stage


@dataclass(frozen=True, slots=True)
class BatchPass:
    """One entry for each micro-batch, and what to report."""

    parts: list[Passed]
    metrics: dict[str, float]


@torch.no_grad()
def batch_pass(
    model: Any,
    stage: Stage,
    packed: Sequence[MicroBatch],
    device: torch.device,
    *,
    version: int,
    penalty_coef: float,
) -> BatchPass:
    """Log-probabilities of the whole batch, and what the objective makes of them; nothing if it needs none.

    `version` is that of the weights before the step, `penalty_coef` the KL penalty's for this step. Raises ConfigError
    for advantages of another shape.
    """
    objective = stage.objective
    if not objective.sees_whole_batch or not any(len(micro.targets) for micro in packed):
        return BatchPass([Passed()] * len(packed), {})
    batch = _tokens(model, stage, packed, device, version=version)
    metrics: dict[str, float] = {}
    advantages: Tensor | None = None
    if objective.kl_penalty.coef > 0:
        assert batch.ref_logprobs is not None
        kl = objective.kl_penalty.estimate(batch.old_logprobs, batch.ref_logprobs, batch.old_logprobs)
        kl = kl.masked_fill(batch.expert, 0.0)
        advantages = batch.advantages - penalty_coef * kl
        batch = replace(batch, penalties=penalty_coef * kl, advantages=advantages)
        metrics |= {"critic/kl": float(kl.mean()), "critic/kl_coef": penalty_coef}
    if objective.token_advantage is not None:
        advantages = objective.token_advantage.token_advantages(batch)
        _check_shape(advantages, batch)
        advantages = advantages.masked_fill(batch.expert, 0.0)
    before = batch
    if advantages is not None:
        batch = replace(batch, advantages=advantages)
        metrics |= {
            "critic/advantages/mean": float(advantages.mean()),
            "critic/advantages/max": float(advantages.max()),
            "critic/advantages/min": float(advantages.min()),
        }
    returns = None
    if batch.values is not None and isinstance(objective.token_advantage, ValueAdvantage):
        # What the advantages began from is what the critic learns: before they are whitened.
        returns = batch.values + objective.token_advantage.estimate(before)
        metrics |= {"critic/values/mean": float(batch.values.mean()), "critic/returns/mean": float(returns.mean())}
    corrected = objective.correction.of_batch(batch) if batch.logprobs is not None else Corrected()
    sizes = [len(micro.targets) for micro in packed]
    columns = (advantages, batch.ref_logprobs, corrected.multiplier, corrected.keep, batch.values, returns)
    split = [torch.split(column, sizes) if column is not None else [None] * len(packed) for column in columns]
    return BatchPass(
        [
            Passed(advantages=a, ref_logprobs=r, multiplier=m, keep=k, values=v, returns=g)
            for a, r, m, k, v, g in zip(*split, strict=True)
        ],
        metrics,
    )


def _tokens(
    model: Any,
    stage: Stage,
    packed: Sequence[MicroBatch],
    device: torch.device,
    *,
    version: int,
) -> BatchTokens:
    fields, reference, critic, teacher = stage.objective.pass_fields, stage.reference, stage.critic, stage.teacher
    own = [logprobs_of(model, micro, device) for micro in packed] if fields & {"logprobs", "entropies"} else None
    ref: list[Tensor] = []
    if reference is not None and "ref_logprobs" in fields:
        with reference.model() as frozen:
            ref = [logprobs_of(frozen, micro, device)[0] for micro in packed]
    starts = np.cumsum([0, *(micro.sequences for micro in packed)])
    versions = [micro.versions for micro in packed if micro.versions is not None]
    whole = np.concatenate
    return BatchTokens(
        old_logprobs=tensor(whole([micro.old_logprobs for micro in packed]), device),
        advantages=tensor(whole([micro.advantages for micro in packed]), device),
        rewards=tensor(whole([micro.rewards for micro in packed]), device),
        expert=tensor(whole([micro.expert for micro in packed]), device),
        sequence=tensor(whole([micro.sequence + start for micro, start in zip(packed, starts, strict=False)]), device),
        sequences=int(starts[-1]),
        versions=tensor(whole(versions), device) if len(versions) == len(packed) else None,
        version=version,
        logprobs=torch.cat([part[0] for part in own]) if own else None,
        entropies=torch.cat([part[1] for part in own]) if own else None,
        ref_logprobs=torch.cat(ref) if ref else None,
        teacher_logprobs=torch.cat([logprobs_of(teacher, micro, device)[0] for micro in packed]) if teacher else None,
        values=torch.cat([critic.values(micro) for micro in packed]) if critic else None,
        entropy_signals=torch.cat([signals_of(model, micro, device) for micro in packed])
        if "entropy_signals" in fields
        else None,
    )


def _check_shape(advantages: Tensor, batch: BatchTokens) -> None:
    if advantages.shape != batch.old_logprobs.shape:
        raise ConfigError(
            f"the advantage function gave {tuple(advantages.shape)} for {len(batch.old_logprobs)} tokens",
            field="algorithm.advantage_fn",
            fix="let token_advantages return one value for each trained token of the batch",
        )
