"""Log-probabilities of the trained tokens of a micro-batch, under a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rftd.workers.algorithms.policy_losses.policy_loss import LossTokens, Pairs
from rftd.workers.trainer.engines.torch.packing import PADDING, PROMPT, MicroBatch
from rftd.workers.trainer.engines.torch.token_logprobs import entropy_signals, token_logprobs


def attention_mask(segments: Tensor) -> Tensor:
    """Which places a place may see: earlier ones of the prompt and of its own response  # [B, L] -> [B, 1, L, L] bool

    Padding sees itself, for a row of nothing has no softmax.
    """
    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    keys, queries = segments[:, None, :], segments[:, :, None]
    seen = causal & ((keys == PROMPT) | (keys == queries)) & (queries != PADDING)
    itself = torch.eye(length, dtype=torch.bool, device=segments.device)
    return (seen | itself)[:, None]


def hidden_of(decoder: Any, batch: MicroBatch, device: torch.device) -> Tensor:
    """The last hidden state at the place that predicts each trained token  # [N, D]"""
    arguments: dict[str, Tensor] = {}
    if batch.segments is not None:
        arguments["attention_mask"] = attention_mask(tensor(batch.segments, device))
        arguments["position_ids"] = tensor(batch.positions, device)
    states = decoder(input_ids=tensor(batch.ids, device), use_cache=False, **arguments).last_hidden_state  # [B, L, D]
    found: Tensor = states.flatten(0, 1).index_select(0, tensor(batch.source, device))
    return found


def logprobs_of(model: Any, batch: MicroBatch, device: torch.device) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each trained token; only their places go through the output layer  # [N], [N]"""
    return token_logprobs(
        hidden_of(model.get_decoder(), batch, device),
        model.get_output_embeddings().weight,
        tensor(batch.targets, device),
        tensor(batch.inverse_temperature, device),
    )


def signals_of(model: Any, batch: MicroBatch, device: torch.device) -> Tensor:
    """The mean of p (H + log p) at each trained token  # [N]"""
    return entropy_signals(
        hidden_of(model.get_decoder(), batch, device),
        model.get_output_embeddings().weight,
        tensor(batch.inverse_temperature, device),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Passed:
    """What a pass over the whole batch gave for one micro-batch; None: what it has is right."""

    advantages: Tensor | None = None  # [N]
    ref_logprobs: Tensor | None = None  # [N]
    multiplier: Tensor | None = None  # [N]
    keep: Tensor | None = None  # [N] bool
    values: Tensor | None = None  # [N], the critic's before the step
    returns: Tensor | None = None  # [N], what the critic learns


def loss_tokens(
    model: Any,
    reference: Any | None,
    batch: MicroBatch,
    device: torch.device,
    *,
    stage_step: int,
    version: int,
    passed: Passed,
) -> LossTokens:
    """Everything that a loss may look at, with the policy's gradient."""
    ref_logprobs = passed.ref_logprobs
    if reference is not None and ref_logprobs is None:
        with torch.no_grad(), reference.model() as frozen:
            ref_logprobs, _ = logprobs_of(frozen, batch, device)
    logprobs, entropies = logprobs_of(model, batch, device)
    return LossTokens(
        logprobs=logprobs,
        entropies=entropies,
        old_logprobs=tensor(batch.old_logprobs, device),
        ref_logprobs=ref_logprobs,
        advantages=tensor(batch.advantages, device) if passed.advantages is None else passed.advantages,
        expert=tensor(batch.expert, device),
        sequence=tensor(batch.sequence, device),
        sequences=batch.sequences,
        stage_step=stage_step,
        pairs=_pairs(batch, device),
        versions=None if batch.versions is None else tensor(batch.versions, device),
        version=version,
        multiplier=passed.multiplier,
        keep=passed.keep,
    )


def _pairs(batch: MicroBatch, device: torch.device) -> Pairs | None:
    if batch.pairs is None:
        return None
    return Pairs(
        of=tensor(batch.pairs, device),
        chosen=tensor(batch.chosen, device),
        count=batch.sequences // 2,
        in_batch=batch.pairs_in_batch,
    )


def tensor(array: Any, device: torch.device) -> Tensor:
    """The array on the device; shared memory on a CPU."""
    return torch.from_numpy(array).to(device, non_blocking=True)
