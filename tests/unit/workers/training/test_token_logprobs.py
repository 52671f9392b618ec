"""Chunked log-probabilities: values and gradients as torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rftd.workers.engines.torch.trainer import token_logprobs
from rftd.workers.engines.torch.trainer.token_logprobs import LogitForm


@pytest.mark.parametrize("chunk_logits", [1, 70, 1 << 22])
@pytest.mark.parametrize("entropy_weight", [0.0, 0.7])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("form", [LogitForm(), LogitForm(scale=0.3), LogitForm(scale=2.0, cap=1.5)])
def test_values_and_gradients(
    monkeypatch: pytest.MonkeyPatch, chunk_logits: int, entropy_weight: float, biased: bool, form: LogitForm
) -> None:
    monkeypatch.setattr(token_logprobs, "CHUNK_LOGITS", chunk_logits)
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(11, 8, generator=generator, requires_grad=True)
    head = torch.randn(23, 8, generator=generator, requires_grad=True)
    bias = torch.randn(23, generator=generator, requires_grad=True) if biased else None
    learning = [hidden, head, *([] if bias is None else [bias])]
    targets = torch.randint(0, 23, (11,), generator=generator)
    inverse = torch.rand(11, generator=generator) + 0.5
    upstream = torch.randn(11, generator=generator)

    logprobs, entropies = token_logprobs.token_logprobs(hidden, head, targets, inverse, bias=bias, form=form)
    got = torch.autograd.grad((logprobs * upstream + entropy_weight * entropies).sum(), learning)

    logits = torch.nn.functional.linear(hidden, head, bias) * form.scale
    if form.cap is not None:
        logits = form.cap * torch.tanh(logits / form.cap)
    everything = torch.log_softmax(logits * inverse[:, None], -1)
    chosen, entropy = everything.gather(1, targets[:, None])[:, 0], -(everything.exp() * everything).sum(-1)
    expected = torch.autograd.grad((chosen * upstream + entropy_weight * entropy).sum(), learning)
    torch.testing.assert_close(logprobs, chosen)
    torch.testing.assert_close(entropies, entropy)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    signals = token_logprobs.entropy_signals(hidden, head, inverse, bias=bias, form=form)
    torch.testing.assert_close(signals, (everything.exp().square() * (everything + entropy[:, None])).sum(-1))
    squares = token_logprobs.probability_squares(hidden, head, inverse, bias=bias, form=form)
    torch.testing.assert_close(squares, everything.exp().square().sum(-1))


class Shapes(TorchDispatchMode):
    """The shapes of all tensors that operations give while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = function(*args, **(kwargs or {}))
        self.found |= {tuple(each.shape) for each in [given] if isinstance(each, torch.Tensor)}
        return given


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_output_layer_costs_no_gradient_of_its_size(frozen: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(11, 8, generator=generator, requires_grad=True)
    head = torch.randn(23, 8, generator=generator, requires_grad=not frozen)
    bias = torch.randn(23, generator=generator, requires_grad=not frozen)
    targets = torch.randint(0, 23, (11,), generator=generator)
    logprobs, _ = token_logprobs.token_logprobs(hidden, head, targets, torch.ones(11), bias=bias)
    with Shapes() as shapes:
        logprobs.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.abs().sum() > 0
    assert ((23, 8) in shapes.found, (23,) in shapes.found) == (not frozen, not frozen)


def test_an_output_layer_may_learn_over_a_frozen_body() -> None:
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(11, 8, generator=generator)
    head = torch.randn(23, 8, generator=generator, requires_grad=True)
    targets = torch.randint(0, 23, (11,), generator=generator)
    token_logprobs.token_logprobs(hidden, head, targets, torch.ones(11))[0].sum().backward()
    plain = head.detach().clone().requires_grad_(True)
    torch.log_softmax(hidden @ plain.T, -1).gather(1, targets[:, None]).sum().backward()
    torch.testing.assert_close(head.grad, plain.grad)
