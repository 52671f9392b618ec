"""Biases and penalties of many rows at once are those of each row alone, whoever joins, leaves or changes places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from rftd.workers.engines.torch.rollout.adjust import adjusts
from rftd.workers.engines.torch.rollout.draw import Draw
from rftd.workers.engines.torch.rollout.noise import key_of, uniforms
from rftd.workers.generation.engine import Sampling

VOCABULARY = 9
CPU = torch.device("cpu")
NO_END = torch.tensor([], dtype=torch.long)

TOKENS = st.integers(0, VOCABULARY - 1)
SAMPLINGS = st.builds(
    Sampling,
    max_tokens=st.just(50),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.6, 1.3, 4.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, -1.5, 0.7, 3.0]),
    logit_bias=st.dictionaries(TOKENS, st.sampled_from([-100.0, -1.0, 2.5, 100.0]), max_size=3).map(
        lambda biases: tuple(biases.items())
    ),
    seed=st.integers(0, 1000),
)


def plain(logits: torch.Tensor, sampling: Sampling, prompt: Sequence[int], drawn: Sequence[int]) -> torch.Tensor:
    """The changed logits of one row, token by token  # [V] -> [V]"""
    changed = logits.clone()
    for token, bias in sampling.logit_bias:
        changed[token] += bias
    for token in {*prompt, *drawn}:
        factor = torch.tensor(sampling.repetition_penalty)
        changed[token] = changed[token] / factor if changed[token] > 0 else changed[token] * factor
    for token in set(drawn):
        changed[token] -= sampling.presence_penalty
    return changed


def expected(logits: torch.Tensor, sampling: Sampling, changed: torch.Tensor, position: int) -> tuple[int, float]:
    """The token of one row and its log-probability before the changes."""
    scale = 1.0 / np.float64(sampling.temperature or 1.0)
    own = torch.log_softmax(logits * torch.tensor(scale.astype(np.float32)), -1)
    choices = torch.log_softmax(changed * torch.tensor(scale.astype(np.float32)), -1)
    if sampling.temperature == 0:
        token = int(choices.argmax())
    else:
        cumulative = choices.exp().cumsum(-1, dtype=torch.float64)
        at = uniforms(np.array([key_of(sampling.seed)], np.uint64), np.array([position], np.uint64))
        token = int(torch.searchsorted(cumulative, torch.from_numpy(at) * cumulative[-1:], right=True))
    return token, float(own[token])


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_rows_together_draw_what_each_draws_alone(data: st.DataObject) -> None:
    samplings = data.draw(st.lists(SAMPLINGS, min_size=1, max_size=7))
    prompts = [data.draw(st.lists(TOKENS, max_size=4)) for _ in samplings]
    drawn: list[list[int]] = [data.draw(st.lists(TOKENS, max_size=3)) for _ in samplings]
    texts = [(prompt, tokens) for prompt, tokens in zip(prompts, drawn, strict=True)]
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    keys = [key_of(sampling.seed) for sampling in samplings]
    draw = Draw(samplings, keys, [len(tokens) for tokens in drawn], eos=NO_END, device=CPU, texts=texts)
    rows = list(range(len(samplings)))
    for _ in range(data.draw(st.integers(1, 6))):
        logits = torch.randn(len(rows), VOCABULARY, generator=random) * 3
        tokens, logprobs = draw(logits)
        for place, row in enumerate(rows):
            changed = plain(logits[place], samplings[row], prompts[row], drawn[row])
            token, logprob = expected(logits[place], samplings[row], changed, len(drawn[row]))
            assert (int(tokens[place]), float(logprobs[place])) == (token, logprob)
            drawn[row].append(token)
        order = data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True, min_size=1))
        if data.draw(st.booleans()):
            draw = draw.of(np.array(order))
            rows = [rows[place] for place in order]


class Operations(TorchDispatchMode):
    """Counts the operations that tensors are asked for, and those that wait for a device's answer."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if "_local_scalar_dense" in str(func) or "nonzero" in str(func):
            self.waits.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_step_asks_as_much_of_the_device_for_many_rows_as_for_two() -> None:
    each = {"max_tokens": 9, "repetition_penalty": 1.2, "presence_penalty": 0.5, "logit_bias": [[3, 1.0]]}
    changed = msgspec.convert(each, Sampling)
    assert adjusts(changed)
    counts = []
    for rows in (2, 40):
        samplings = [changed, Sampling(max_tokens=9)] * (rows // 2)
        draw = Draw(samplings, [1] * rows, [0] * rows, eos=NO_END, device=CPU, texts=[((1,), ())] * rows)
        draw(torch.zeros(rows, VOCABULARY))
        with Operations() as operations:
            draw(torch.zeros(rows, VOCABULARY))
        counts.append(operations.count)
        assert not operations.waits
    assert counts[0] == counts[1]
