"""Drawing: which token, how likely, and from which random numbers."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from rftd.workers.rollout.engine import Sampling
from rftd.workers.rollout.engines.torch.draw import Draw
from rftd.workers.rollout.engines.torch.noise import key_of, uniforms

CPU = torch.device("cpu")
NO_END = torch.tensor([], dtype=torch.long)
LOGITS = torch.tensor([2.0, 0.0, 1.0, -1.0, 1.5, -3.0])


def sampling(**settings: object) -> Sampling:
    return msgspec.convert({"max_tokens": 10, **settings}, Sampling)


def shares(count: int = 20_000, **settings: object) -> torch.Tensor:
    """How often each token is drawn, one row a seed  # [V]"""
    rows = [sampling(seed=seed, **settings) for seed in range(count)]
    draw = Draw(rows, [key_of(row.seed) for row in rows], [0] * count, eos=NO_END, device=CPU)
    tokens, _ = draw(LOGITS.expand(count, -1))
    return torch.bincount(tokens, minlength=len(LOGITS)) / count


def test_uniform_numbers_are_uniform_and_independent() -> None:
    keys = np.array([key_of(seed) for seed in range(300)], dtype=np.uint64)
    table = np.stack([uniforms(keys, np.full(300, position, dtype=np.uint64)) for position in range(300)])
    assert 0 <= table.min() < table.max() < 1
    counts, _ = np.histogram(table, bins=20, range=(0, 1))
    assert ((counts - 4500) ** 2 / 4500).sum() < 45  # chi squared with 19 degrees of freedom: p is about 0.0007
    for one, other in ((table[:-1], table[1:]), (table[:, :-1], table[:, 1:])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.02
    assert key_of(-1) == key_of(2**64 - 1) != key_of(0)


def test_the_key_of_a_seed_is_what_it_ever_was() -> None:
    """Equal seeds must draw equal tokens in a replay of a log, whichever release wrote it."""
    assert [key_of(seed) for seed in (1, 12345, 2**63 - 1)] == [
        6238072747940578789,
        17540659726606785873,
        6514504133438201533,
    ]


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_shares_are_the_probabilities(temperature: float) -> None:
    expected = torch.softmax(LOGITS / temperature, -1)
    assert torch.allclose(shares(temperature=temperature), expected, atol=0.012)


def test_top_k_and_top_p_keep_the_heaviest() -> None:
    probabilities = torch.softmax(LOGITS, -1)  # tokens in order of weight: 0, 4, 2, 1, 3, 5
    kept = torch.zeros(6)
    kept[[0, 4]] = probabilities[[0, 4]] / probabilities[[0, 4]].sum()
    assert torch.allclose(shares(top_k=2), kept, atol=0.012)
    # 0.47 + 0.29 is the least that reaches 0.7; a third token is not needed.
    assert torch.allclose(shares(top_p=0.7), kept, atol=0.012)
    assert shares(count=500, top_k=1)[0] == 1.0
    assert shares(count=500, top_p=1e-6)[0] == 1.0
    assert torch.allclose(shares(top_k=100), probabilities, atol=0.012)


def test_each_row_has_its_own_settings() -> None:
    rows = [sampling(temperature=0.0), sampling(top_k=1), sampling(temperature=0.5, seed=3), sampling(seed=4)]
    together = Draw(rows, [key_of(r.seed) for r in rows], [0] * 4, eos=NO_END, device=CPU)
    alone = [Draw([row], [key_of(row.seed)], [0], eos=NO_END, device=CPU) for row in rows]
    for _ in range(50):
        tokens, logprobs = together(LOGITS.expand(4, -1))
        for i, draw in enumerate(alone):
            token, logprob = draw(LOGITS.unsqueeze(0))
            assert token == tokens[i]
            assert logprob == logprobs[i]
        assert tokens[:2].tolist() == [0, 0]
        assert logprobs[1] == torch.log_softmax(LOGITS, -1)[0]


def test_a_row_goes_on_where_it_was() -> None:
    row = [sampling(seed=9)]
    whole = Draw(row, [key_of(9)], [0], eos=NO_END, device=CPU)
    tokens = [int(whole(LOGITS.unsqueeze(0))[0]) for _ in range(30)]
    rest = Draw(row, [key_of(9)], [10], eos=NO_END, device=CPU)
    assert [int(rest(LOGITS.unsqueeze(0))[0]) for _ in range(20)] == tokens[10:]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_end_before_min_tokens(temperature: float) -> None:
    rows = [sampling(temperature=temperature, seed=seed, min_tokens=seed % 4) for seed in range(400)]
    draw = Draw(rows, [key_of(r.seed) for r in rows], [0] * 400, eos=torch.tensor([0, 2]), device=CPU)
    for position in range(5):
        tokens, logprobs = draw(LOGITS.expand(400, -1))
        early = torch.tensor([position < row.min_tokens for row in rows])
        ended = (tokens == 0) | (tokens == 2)
        assert not (early & ended).any()
        assert (~early & ended).any()
        # The log-probability is the model's own, as a trainer will compute it.
        assert torch.equal(logprobs, torch.log_softmax(LOGITS, -1)[tokens])
