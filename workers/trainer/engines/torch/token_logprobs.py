"""Log-probability and entropy of chosen tokens, without ever holding the logits of all of them.

Forward and backward go over chunks of tokens; the backward pass computes the logits again instead of keeping them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_LOGITS = 1 << 24
"""Logits computed at once: 64 MiB in float32. Blocks up to 32 MiB the C library keeps for itself, and piles them up."""


class TokenLogprobs(torch.autograd.Function):
    """(hidden [N, D], head [V, D], bias [V], targets [N], inverse temperature [N]) -> (log-probability, entropy [N])"""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, bias: Tensor | None, targets: Tensor, inverse_temperature: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden, head, bias, targets, inverse_temperature)
        parts = [
            _logprobs(_logits(hidden[chunk], head, bias, inverse_temperature[chunk]), targets[chunk])
            for chunk in _chunks(len(targets), len(head))
        ]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        hidden, head, bias, targets, inverse_temperature = ctx.saved_tensors
        for_logprobs, for_entropies = gradients
        of_hidden, of_head = torch.empty_like(hidden), torch.zeros_like(head)
        of_bias = None if bias is None else torch.zeros_like(bias)
        has_entropy = bool(for_entropies.any())
        for chunk in _chunks(len(targets), len(head)):
            logprobs = torch.log_softmax(_logits(hidden[chunk], head, bias, inverse_temperature[chunk]), dim=-1)
            probabilities = logprobs.exp()  # [n, V]
            of_logits = probabilities * -for_logprobs[chunk, None]
            of_logits.scatter_add_(1, targets[chunk, None], for_logprobs[chunk, None])
            if has_entropy:
                entropies = -(probabilities * logprobs).sum(-1, keepdim=True)
                of_logits -= for_entropies[chunk, None] * probabilities * (logprobs + entropies)
            of_logits *= inverse_temperature[chunk, None]
            if of_bias is not None:
                of_bias += of_logits.sum(0).to(of_bias.dtype)
            of_logits = of_logits.to(hidden.dtype)
            of_hidden[chunk] = of_logits @ head.to(hidden.dtype)
            if head.dtype == hidden.dtype:  # in place: a product as large as the head for each chunk costs its pages
                of_head.addmm_(of_logits.T, hidden[chunk])
            else:
                of_head += (of_logits.T @ hidden[chunk]).to(head.dtype)
        return of_hidden, of_head, of_bias, None, None


def token_logprobs(
    hidden: Tensor, head: Tensor, targets: Tensor, inverse_temperature: Tensor, *, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target, and the entropy of what it was drawn from  # [N], [N] float32"""
    with torch.autocast(hidden.device.type, enabled=False):
        made: tuple[Tensor, Tensor] = TokenLogprobs.apply(hidden, head, bias, targets, inverse_temperature)  # type: ignore[no-untyped-call]
        return made


def entropy_signals(hidden: Tensor, head: Tensor, inverse_temperature: Tensor, *, bias: Tensor | None = None) -> Tensor:
    """The sum over the vocabulary of p * p (H + log p): how the entropy answers to what is drawn, on average  # [N]"""
    found = []
    for chunk in _chunks(len(hidden), len(head)):
        logprobs = torch.log_softmax(_logits(hidden[chunk], head, bias, inverse_temperature[chunk]), dim=-1)  # [n, V]
        probabilities = logprobs.exp()
        entropies = -(probabilities * logprobs).sum(-1, keepdim=True)
        found.append((probabilities.square() * (entropies + logprobs)).sum(-1))
    return torch.cat(found)


def _chunks(tokens: int, vocabulary: int) -> list[slice]:
    size = max(1, CHUNK_LOGITS // vocabulary)
    return [slice(start, min(tokens, start + size)) for start in range(0, tokens, size)]


def _logits(hidden: Tensor, head: Tensor, bias: Tensor | None, inverse_temperature: Tensor) -> Tensor:
    logits = (hidden @ head.to(hidden.dtype).T).float()
    if bias is not None:
        logits += bias
    return logits * inverse_temperature[:, None]


def _logprobs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logprobs = torch.log_softmax(logits, dim=-1)  # [n, V]
    return logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)
