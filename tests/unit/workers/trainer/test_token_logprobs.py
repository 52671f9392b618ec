"""Chunked log-probabilities: values and gradients as torch's own."""

from __future__ import annotations

import pytest
import torch

from rftd.workers.trainer.engines.torch import token_logprobs


@pytest.mark.parametrize("chunk_logits", [1, 70, 1 << 22])
@pytest.mark.parametrize("entropy_weight", [0.0, 0.7])
def test_values_and_gradients(monkeypatch: pytest.MonkeyPatch, chunk_logits: int, entropy_weight: float) -> None:
    monkeypatch.setattr(token_logprobs, "CHUNK_LOGITS", chunk_logits)
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(11, 8, generator=generator, requires_grad=True)
    head = torch.randn(23, 8, generator=generator, requires_grad=True)
    targets = torch.randint(0, 23, (11,), generator=generator)
    inverse = torch.rand(11, generator=generator) + 0.5
    upstream = torch.randn(11, generator=generator)

    logprobs, entropies = token_logprobs.token_logprobs(hidden, head, targets, inverse)
    got = torch.autograd.grad((logprobs * upstream + entropy_weight * entropies).sum(), (hidden, head))

    everything = torch.log_softmax(hidden @ head.T * inverse[:, None], -1)
    chosen, entropy = everything.gather(1, targets[:, None])[:, 0], -(everything.exp() * everything).sum(-1)
    expected = torch.autograd.grad((chosen * upstream + entropy_weight * entropy).sum(), (hidden, head))
    torch.testing.assert_close(logprobs, chosen)
    torch.testing.assert_close(entropies, entropy)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
