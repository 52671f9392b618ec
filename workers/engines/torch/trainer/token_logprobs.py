"""Log-probability and entropy of chosen tokens, without the logits of all tokens in memory at once.

Forward and backward passes go over chunks of tokens; the backward pass recomputes the logits instead of storing them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rftd.workers.learning.memory_needs import CHUNK_LOGITS, CHUNK_LOGITS_GPU


class LogitForm(NamedTuple):
    """How an architecture computes logits: cap tanh(scale x / cap), where x is hidden state times output layer plus
    bias; cap None: scale x.
    """

    scale: float = 1.0
    """Factor of the product of hidden state and output layer."""
    cap: float | None = None
    """Bound of the logits, by tanh; None: unbounded."""


PLAIN = LogitForm()
"""The form of most architectures: logits equal to the product."""


def logit_form(config: Any) -> LogitForm:
    """Reads the form of logits from a model's configuration: multiplied (Cohere), divided (Granite), capped (Gemma)."""

    def stated(name: str) -> float:
        value = getattr(config, name, None)
        return float(value) if value else 1.0

    scale = stated("logit_scale") * stated("lm_head_multiplier") / stated("logits_scaling")
    # The first is Gemma 2's name, the second RecurrentGemma's.
    cap = getattr(config, "final_logit_softcapping", None) or getattr(config, "logits_soft_cap", None)
    return LogitForm(scale, cap or None)


class TokenLogprobs(torch.autograd.Function):
    """Autograd function of log-probabilities and entropies; the backward pass recomputes the logits.

    # hidden [N, D], head [V, D], bias [V], targets [N], inverse temperature [N], form of the logits -> [N], [N]
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        inverse_temperature: Tensor,
        form: LogitForm,
    ) -> tuple[Tensor, Tensor]:
        """Computes log-probabilities and entropies, chunk by chunk."""
        ctx.form = form
        ctx.save_for_backward(hidden, head, bias, targets, inverse_temperature)
        chunks = _chunks(hidden, len(head))
        head = head.to(hidden.dtype)  # once: the layer is larger than the states of a chunk
        parts = [
            _logprobs(_logits(hidden[chunk], head, bias, inverse_temperature[chunk], form), targets[chunk])
            for chunk in chunks
        ]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Computes the gradients of the inputs from those of log-probabilities and entropies, chunk by chunk."""
        hidden, head, bias, targets, inverse_temperature = ctx.saved_tensors
        for_logprobs, for_entropies = gradients
        form: LogitForm = ctx.form
        # A frozen output layer (beside an adapter) costs neither a product nor memory as large as itself.
        of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        of_head = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        of_bias = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        # One wait for the device, which saves the work of the entropies where no bonus asks for them.
        has_entropy = bool(for_entropies.any())
        multiplied = head.to(hidden.dtype)
        for chunk in _chunks(hidden, len(head)):
            logits = _logits(hidden[chunk], multiplied, bias, inverse_temperature[chunk], form)
            slope = _slope(logits, inverse_temperature[chunk], form)
            logprobs = torch.log_softmax(logits, dim=-1)
            probabilities = logprobs.exp()  # [n, V]
            of_logits = probabilities * -for_logprobs[chunk, None]
            of_logits.scatter_add_(1, targets[chunk, None], for_logprobs[chunk, None])
            if has_entropy:
                entropies = -(probabilities * logprobs).sum(-1, keepdim=True)
                of_logits -= for_entropies[chunk, None] * probabilities * (logprobs + entropies)
            # The chain rule backwards through _logits: first the temperature, then cap and scale.
            of_logits *= inverse_temperature[chunk, None] * slope
            if of_bias is not None:
                of_bias += of_logits.sum(0).to(of_bias.dtype)
            # Down to the states' dtype after all sums in float32: products in bfloat16 are what autocast would do as
            # well.
            of_logits = of_logits.to(hidden.dtype)
            if of_hidden is not None:
                of_hidden[chunk] = of_logits @ multiplied
            if of_head is None:
                continue
            if head.dtype == hidden.dtype:  # in place: a product as large as the head for each chunk costs its pages
                of_head.addmm_(of_logits.T, hidden[chunk])
            else:
                of_head += _product(of_logits.T, hidden[chunk]).to(head.dtype)
        return of_hidden, of_head, of_bias, None, None, None


def token_logprobs(
    hidden: Tensor,
    head: Tensor,
    targets: Tensor,
    inverse_temperature: Tensor,
    *,
    bias: Tensor | None = None,
    form: LogitForm = PLAIN,
) -> tuple[Tensor, Tensor]:
    """Returns the log-probability of each target and the entropy of its distribution, in nats  # [N], [N] float32

    `hidden` are the states before the output layer, `head` and `bias` its weights.
    """
    # The dtype of the states decides, not autocast: the backward pass runs outside of it, and computes the same logits.
    states = _as_multiplied(hidden)
    with torch.autocast(hidden.device.type, enabled=False):
        arguments = (states, head, bias, targets, inverse_temperature, form)
        figures: tuple[Tensor, Tensor] = TokenLogprobs.apply(*arguments)  # type: ignore[no-untyped-call]
        return figures


def _as_multiplied(hidden: Tensor) -> Tensor:
    """Returns the states in the dtype of their product with the output layer.

    On a GPU, autocast's: there the last norm leaves float32, whose products run without matrix units, take ten times as
    long, and are further from the explorers' products, which use rounded weights. On a CPU unchanged.
    """
    if hidden.is_cuda and torch.is_autocast_enabled("cuda"):
        return hidden.to(torch.get_autocast_dtype("cuda"))
    return hidden


def entropy_signals(
    hidden: Tensor,
    head: Tensor,
    inverse_temperature: Tensor,
    *,
    bias: Tensor | None = None,
    form: LogitForm = PLAIN,
) -> Tensor:
    """Returns the sum over the vocabulary of p * p (H + log p): the expected change of the entropy by a draw  # [N]"""

    def signals(logprobs: Tensor) -> Tensor:
        probabilities = logprobs.exp()
        entropies = -(probabilities * logprobs).sum(-1, keepdim=True)
        return (probabilities.square() * (entropies + logprobs)).sum(-1)

    return _of_distributions(signals, hidden, head, inverse_temperature, bias, form)


def probability_squares(
    hidden: Tensor,
    head: Tensor,
    inverse_temperature: Tensor,
    *,
    bias: Tensor | None = None,
    form: LogitForm = PLAIN,
) -> Tensor:
    """Returns the sum over the vocabulary of p * p  # [N]"""
    return _of_distributions(
        lambda logprobs: (2 * logprobs).exp().sum(-1), hidden, head, inverse_temperature, bias, form
    )


def _of_distributions(
    figure: Callable[[Tensor], Tensor],
    hidden: Tensor,
    head: Tensor,
    inverse_temperature: Tensor,
    bias: Tensor | None,
    form: LogitForm,
) -> Tensor:
    """Computes a figure of each complete distribution, chunk by chunk  # [N]"""
    figures = []
    hidden = _as_multiplied(hidden)
    head = head.to(hidden.dtype)
    for chunk in _chunks(hidden, len(head)):
        logits = _logits(hidden[chunk], head, bias, inverse_temperature[chunk], form)
        figures.append(figure(torch.log_softmax(logits, dim=-1)))
    return torch.cat(figures)


def _chunks(hidden: Tensor, vocabulary: int) -> list[slice]:
    """Returns slices of tokens whose logits fit into memory at once."""
    # At least one token, for a vocabulary may be larger than a chunk.
    size = max(1, (CHUNK_LOGITS if hidden.device.type == "cpu" else CHUNK_LOGITS_GPU) // vocabulary)
    tokens = len(hidden)
    return [slice(start, min(tokens, start + size)) for start in range(0, tokens, size)]


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Multiplies two matrices of one dtype; the product is in float32."""
    if left.is_cuda and left.dtype != torch.float32:
        # Summed in float32 there anyway: rounded to bfloat16, a logit of 20 would be off by as much as 0.06.
        return torch.mm(left, right, out_dtype=torch.float32)
    return (left @ right).float()


def _logits(hidden: Tensor, head: Tensor, bias: Tensor | None, inverse_temperature: Tensor, form: LogitForm) -> Tensor:
    """Returns the logits of a chunk at the tokens' temperatures, in float32  # [n, V]"""
    # The product in the states' dtype, which is the layer's by now; all that follows in float32.
    logits = _product(hidden, head.T)
    if bias is not None:
        logits += bias
    if form.scale != 1.0:
        logits *= form.scale
    if form.cap is not None:
        logits = torch.tanh(logits / form.cap) * form.cap
    return logits * inverse_temperature[:, None]


def _slope(logits: Tensor, inverse_temperature: Tensor, form: LogitForm) -> Tensor | float:
    """Returns the derivative of the logits at temperature 1 by the product of hidden state and output layer
    # [n, V]
    """
    if form.cap is None:
        return form.scale
    share = logits / (inverse_temperature[:, None] * form.cap)  # the tanh
    return form.scale * (1.0 - share.square())


def _logprobs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities of the targets, and entropies  # [n], [n]"""
    logprobs = torch.log_softmax(logits, dim=-1)  # [n, V]
    return logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)
