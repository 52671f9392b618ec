"""Log-probabilities of a micro-batch's trained tokens under a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.engines.learner.model import decoder_of, output_states
from rftd.workers.engines.torch.trainer.packing import PackedRows
from rftd.workers.engines.torch.trainer.token_logprobs import (
    entropy_signals,
    logit_form,
    probability_squares,
    token_logprobs,
)
from rftd.workers.learning.stage.micro_batch import Ints


def attention_mask(ends: Tensor) -> Tensor:
    """Returns for each pair (position, position not later) whether the first may attend to the second: before the
    second's `ends`  # [B, L] -> [B, 1, L, L] bool
    """
    index = torch.arange(ends.shape[1], device=ends.device)
    return ((index[:, None] >= index) & (index[:, None] < ends[:, None, :]))[:, None]


def hidden_of(decoder: Any, batch: PackedRows, device: torch.device, source: Ints | None = None) -> Tensor:
    """Returns the last hidden states at the positions `source`, by default those predicting the trained tokens  # [N,
    D]
    """
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
    hidden: Tensor = states.flatten(0, 1).index_select(0, to_device(batch.source if source is None else source, device))
    return hidden


def logprobs_of(model: Any, batch: PackedRows, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns log-probability and entropy of each trained token, in nats  # [N], [N] float32

    Only predicting positions pass through the output layer, and equal predictions once.
    """
    source = batch.source
    targets = batch.targets
    temperature = batch.inverse_temperature
    predictions = batch.predictions
    if predictions is not None:
        source = source[predictions.first]
        targets = targets[predictions.first]
        temperature = temperature[predictions.first]
    output = model.get_output_embeddings()
    logprobs, entropies = token_logprobs(
        output_states(model, hidden_of(decoder_of(model), batch, device, source)),
        output.weight,
        to_device(targets, device),
        to_device(temperature, device),
        bias=getattr(output, "bias", None),
        form=logit_form(model.config),
    )
    if predictions is None:
        return logprobs, entropies
    which = to_device(predictions.which, device)
    return logprobs.index_select(0, which), entropies.index_select(0, which)


def signals_of(model: Any, batch: PackedRows, device: torch.device) -> Tensor:
    """Returns the mean over the vocabulary of p (H + log p) at each trained token  # [N]"""
    return _of_distributions(entropy_signals, model, batch, device)


def squares_of(model: Any, batch: PackedRows, device: torch.device) -> Tensor:
    """Returns the sum of squared probabilities at each trained token  # [N]"""
    return _of_distributions(probability_squares, model, batch, device)


def _of_distributions(figure: Callable[..., Tensor], model: Any, batch: PackedRows, device: torch.device) -> Tensor:
    """Computes a figure of the complete distribution at each trained token  # [N]"""
    output = model.get_output_embeddings()
    return figure(
        output_states(model, hidden_of(decoder_of(model), batch, device)),
        output.weight,
        to_device(batch.inverse_temperature, device),
        bias=getattr(output, "bias", None),
        form=logit_form(model.config),
    )
