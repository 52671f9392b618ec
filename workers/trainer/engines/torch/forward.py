"""Log-probabilities of the trained tokens of a micro-batch, under a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rftd.workers.algorithms.policy_losses.policy_loss import LossTokens, Pairs
from rftd.workers.trainer.engines.torch.packing import MicroBatch
from rftd.workers.trainer.engines.torch.token_logprobs import entropy_signals, token_logprobs
from rftd.workers.trainer.engines.torch.token_trees import Ints


def attention_mask(ends: Tensor) -> Tensor:
    """Which places a place may see: itself, and earlier ones that end after it  # [B, L] -> [B, 1, L, L] bool"""
    place = torch.arange(ends.shape[1], device=ends.device)
    return ((place[:, None] >= place) & (place[:, None] < ends[:, None, :]))[:, None]


def hidden_of(decoder: Any, batch: MicroBatch, device: torch.device, source: Ints | None = None) -> Tensor:
    """The last hidden state at `source`, or else at the place that predicts each trained token  # [N, D]"""
    arguments: dict[str, Tensor] = {}
    if batch.ends is not None:
        arguments["attention_mask"] = attention_mask(tensor(batch.ends, device))
        arguments["position_ids"] = tensor(batch.positions, device)
    states = decoder(input_ids=tensor(batch.ids, device), use_cache=False, **arguments).last_hidden_state  # [B, L, D]
    found: Tensor = states.flatten(0, 1).index_select(0, tensor(batch.source if source is None else source, device))
    return found


def logprobs_of(model: Any, batch: MicroBatch, device: torch.device) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each trained token  # [N], [N]

    Only places that predict one go through the output layer, and of equal predictions one.
    """
    source, targets, temperature, made = batch.source, batch.targets, batch.inverse_temperature, batch.predictions
    if made is not None:
        source, targets, temperature = source[made.first], targets[made.first], temperature[made.first]
    output = model.get_output_embeddings()
    logprobs, entropies = token_logprobs(
        hidden_of(model.get_decoder(), batch, device, source),
        output.weight,
        tensor(targets, device),
        tensor(temperature, device),
        bias=getattr(output, "bias", None),
    )
    if made is None:
        return logprobs, entropies
    which = tensor(made.which, device)
    return logprobs.index_select(0, which), entropies.index_select(0, which)


def signals_of(model: Any, batch: MicroBatch, device: torch.device) -> Tensor:
    """The mean of p (H + log p) at each trained token  # [N]"""
    output = model.get_output_embeddings()
    return entropy_signals(
        hidden_of(model.get_decoder(), batch, device),
        output.weight,
        tensor(batch.inverse_temperature, device),
        bias=getattr(output, "bias", None),
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
