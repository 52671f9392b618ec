"""Chunked log-probabilities: values and gradients as torch's own."""

from __future__ import annotations

import pytest
import torch

from rftd.workers.trainer.engines.torch import token_logprobs


@pytest.mark.parametrize("chunk_logits", [1, 70, 1 << 22])
@pytest.mark.parametrize("entropy_weight", [0.0, 0.7])
@pytest.mark.parametrize("biased", [False, True])
def test_values_and_gradients(
    monkeypatch: pytest.MonkeyPatch, chunk_logits: int, entropy_weight: float, biased: bool
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

    logprobs, entropies = token_logprobs.token_logprobs(hidden, head, targets, inverse, bias=bias)
    got = torch.autograd.grad((logprobs * upstream + entropy_weight * entropies).sum(), learning)

    everything = torch.log_softmax(torch.nn.functional.linear(hidden, head, bias) * inverse[:, None], -1)
    chosen, entropy = everything.gather(1, targets[:, None])[:, 0], -(everything.exp() * everything).sum(-1)
    expected = torch.autograd.grad((chosen * upstream + entropy_weight * entropy).sum(), learning)
    torch.testing.assert_close(logprobs, chosen)
    torch.testing.assert_close(entropies, entropy)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    signals = token_logprobs.entropy_signals(hidden, head, inverse, bias=bias)
    torch.testing.assert_close(signals, (everything.exp().square() * (everything + entropy[:, None])).sum(-1))
