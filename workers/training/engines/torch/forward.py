"""Log-probabilities of the trained tokens of a micro-batch, under a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.training.engines.torch.model import decoder_of, output_states
from rftd.workers.training.engines.torch.packing import MicroBatch
from rftd.workers.training.engines.torch.token_logprobs import entropy_signals, logit_form, token_logprobs
from rftd.workers.training.engines.torch.token_trees import Ints
from rftd.workers.training.losses.policy_loss import Labels, LossTokens, Pairs


def attention_mask(ends: Tensor) -> Tensor:
    """True where a place may see another: itself, and earlier ones that end after it  # [B, L] -> [B, 1, L, L] bool"""
    place = torch.arange(ends.shape[1], device=ends.device)
    return ((place[:, None] >= place) & (place[:, None] < ends[:, None, :]))[:, None]


def hidden_of(decoder: Any, batch: MicroBatch, device: torch.device, source: Ints | None = None) -> Tensor:
    """The last hidden state at `source`, or else at the place that predicts each trained token  # [N, D]"""
    arguments: dict[str, Tensor] = {}
    # Without branches nothing is passed: a plainly causal mask lets attention take its fast kernel.
    if batch.ends is not None:
        arguments["attention_mask"] = attention_mask(to_device(batch.ends, device))
        arguments["position_ids"] = to_device(batch.positions, device)
    # The decoder alone, not the model: logits of all places are the largest tensor of a step, and most places predict
    # nothing.
    states = decoder(
        input_ids=to_device(batch.ids, device), use_cache=False, **arguments
    ).last_hidden_state  # [B, L, D]
    found: Tensor = states.flatten(0, 1).index_select(0, to_device(batch.source if source is None else source, device))
    return found


def logprobs_of(model: Any, batch: MicroBatch, device: torch.device) -> tuple[Tensor, Tensor]:
    """The log-probability and entropy of each trained token, in nats  # [N], [N] float32

    Only places that predict one go through the output layer, and of equal predictions one.
    """
    source = batch.source
    targets = batch.targets
    temperature = batch.inverse_temperature
    made = batch.predictions
    if made is not None:
        source = source[made.first]
        targets = targets[made.first]
        temperature = temperature[made.first]
    output = model.get_output_embeddings()
    logprobs, entropies = token_logprobs(
        output_states(model, hidden_of(decoder_of(model), batch, device, source)),
        output.weight,
        to_device(targets, device),
        to_device(temperature, device),
        bias=getattr(output, "bias", None),
        form=logit_form(model.config),
    )
    if made is None:
        return logprobs, entropies
    which = to_device(made.which, device)
    return logprobs.index_select(0, which), entropies.index_select(0, which)


def signals_of(model: Any, batch: MicroBatch, device: torch.device) -> Tensor:
    """The mean of p (H + log p) at each trained token  # [N]"""
    output = model.get_output_embeddings()
    return entropy_signals(
        output_states(model, hidden_of(decoder_of(model), batch, device)),
        output.weight,
        to_device(batch.inverse_temperature, device),
        bias=getattr(output, "bias", None),
        form=logit_form(model.config),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Passed:
    """The outcome of a pass over the whole batch for one micro-batch; None: its own value holds."""

    advantages: Tensor | None = None  # [N]
    start_logprobs: Tensor | None = None  # [N], if other steps follow and the loss asks for them
    ref_logprobs: Tensor | None = None  # [N]
    multiplier: Tensor | None = None  # [N]
    keep: Tensor | None = None  # [N] bool
    marked: Tensor | None = None  # [N] bool
    reference_kl: Tensor | None = None  # [], of responses to prompts that they do not answer
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
    """The tokens of one micro-batch, with all that a loss may look at and the policy's gradient."""
    ref_logprobs = passed.ref_logprobs
    if reference is not None and ref_logprobs is None:
        # Before the policy's own forward: an adapter's reference changes the weights, which no graph may hold by then.
        with torch.no_grad(), reference.model() as frozen:
            ref_logprobs, _ = logprobs_of(frozen, batch, device)
    logprobs, entropies = logprobs_of(model, batch, device)
    return LossTokens(
        logprobs=logprobs,
        entropies=entropies,
        old_logprobs=to_device(batch.old_logprobs, device),
        ref_logprobs=ref_logprobs,
        advantages=to_device(batch.advantages, device) if passed.advantages is None else passed.advantages,
        expert=to_device(batch.expert, device),
        sequence=to_device(batch.sequence, device),
        sequences=batch.sequences,
        stage_step=stage_step,
        pairs=_pairs(batch, device),
        labels=_labels(batch, device),
        versions=None if batch.versions is None else to_device(batch.versions, device),
        version=version,
        start_logprobs=passed.start_logprobs,
        multiplier=passed.multiplier,
        keep=passed.keep,
        marked=passed.marked,
        reference_kl=passed.reference_kl,
    )


def _pairs(batch: MicroBatch, device: torch.device) -> Pairs | None:
    if batch.pairs is None or batch.chosen is None:
        return None
    return Pairs(
        of=to_device(batch.pairs, device),
        chosen=to_device(batch.chosen, device),
        count=batch.sequences // 2,
        in_batch=batch.pairs_in_batch,
    )


def _labels(batch: MicroBatch, device: torch.device) -> Labels | None:
    if batch.chosen is None:
        return None
    return Labels(
        desirable=to_device(batch.chosen, device),
        in_batch=batch.responses_in_batch,
        desirable_in_batch=batch.chosen_in_batch,
    )
