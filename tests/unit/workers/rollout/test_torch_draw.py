"""Drawing: which token, how likely, and from which random numbers."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from rftd.workers.engines.torch.rollout.draw import Draw
from rftd.workers.engines.torch.rollout.noise import key_of, uniforms
from rftd.workers.generation.engine import Sampling

CPU = torch.device("cpu")
NO_END = torch.tensor([], dtype=torch.long)
LOGITS = torch.tensor([2.0, 0.0, 1.0, -1.0, 1.5, -3.0])


def sampling(**settings: object) -> Sampling:
    return msgspec.convert({"max_tokens": 10, **settings}, Sampling)


def shares(count: int = 20_000, **settings: object) -> torch.Tensor:
    """The share of draws of each token, one row a seed  # [V]"""
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


def test_min_p_is_a_share_of_the_likeliest() -> None:
    probabilities = torch.softmax(LOGITS, -1)
    kept = probabilities * (probabilities >= 0.3 * probabilities.max())
    assert int((kept > 0).sum()) == 3
    assert torch.allclose(shares(min_p=0.3), kept / kept.sum(), atol=0.012)
    assert shares(count=500, min_p=1.0)[0] == 1.0
    # Before top_p: a share of what is left.
    assert torch.allclose(shares(min_p=0.3, top_p=0.75), shares(top_k=2), atol=0.012)


def test_biases_and_penalties_are_those_of_transformers() -> None:
    """Token by token, over a text that grows; the temperature divides what they leave."""
    rows = [
        sampling(repetition_penalty=1.7, seed=1),
        sampling(presence_penalty=1.5, temperature=0.5, seed=2),
        sampling(logit_bias=[[5, 6.0], [0, -100.0]], repetition_penalty=0.8, seed=3),
        sampling(temperature=0.0, repetition_penalty=3.0),
        sampling(seed=4),
    ]
    prompts = [[0, 3], [0, 4], [2], [1], [0]]
    drawn = [[] for _ in rows]  # type: ignore[var-annotated]
    texts = [(prompt, tokens) for prompt, tokens in zip(prompts, drawn, strict=True)]
    draw = Draw(rows, [key_of(r.seed) for r in rows], [0] * 5, eos=NO_END, device=CPU, texts=texts)
    order = np.arange(5)
    for position in range(40):
        expected = []
        for number in order:
            row = rows[number]
            logits = LOGITS.clone()
            for token, bias in row.logit_bias:
                logits[token] += bias
            processor = RepetitionPenaltyLogitsProcessor(row.repetition_penalty)
            logits = processor(torch.tensor([[*prompts[number], *drawn[number]]]), logits[None])[0]  # type: ignore[arg-type]
            logits[sorted(set(drawn[number]))] -= row.presence_penalty
            if row.temperature == 0:
                expected.append(int(logits.argmax()))
                continue
            share = torch.softmax(logits / row.temperature, -1).double().cumsum(-1)
            keys = np.array([key_of(row.seed)], np.uint64)
            at = np.array([position], np.uint64)
            expected.append(int(torch.searchsorted(share, torch.from_numpy(uniforms(keys, at)), right=True)))
        tokens, logprobs = draw(LOGITS.expand(5, -1))
        assert tokens.tolist() == expected
        for place, number in enumerate(order):
            heat = rows[number].temperature or 1.0
            assert logprobs[place] == torch.log_softmax(LOGITS * (1 / heat), -1)[tokens[place]], "the model's own"
            drawn[number].append(int(tokens[place]))
        if position == 20:
            turned = np.array([4, 2, 0, 3, 1])
            draw = draw.of(turned)
            order = order[turned]
    assert len(set(drawn[3])) > 1, "greedy text repeats itself without the penalty"


def kept_logprobs(logits: torch.Tensor, row: Sampling, drawn: list[int], end: int) -> torch.Tensor:
    """A plain float64 loop over the whole vocabulary; the prompt is empty  # [V] -> [V]"""
    scores = logits.double().tolist()
    for token, bias in row.logit_bias:
        scores[token] += bias
    for token in set(drawn):
        scores[token] *= row.repetition_penalty if scores[token] < 0 else 1 / row.repetition_penalty
        scores[token] -= row.presence_penalty
    weights = torch.softmax(torch.tensor(scores, dtype=torch.float64) / row.temperature, -1)
    if len(drawn) < row.min_tokens:
        weights[end] = 0.0
    order = weights.argsort(descending=True)
    kept = [token for token in order.tolist() if weights[token] >= row.min_p * weights.max()]
    kept = kept[: row.top_k] if row.top_k > 0 else kept
    nucleus = []
    mass = 0.0
    for token in kept:
        if mass < row.top_p * float(weights[kept].sum()):
            nucleus.append(token)
            mass += float(weights[token])
    left = torch.full_like(weights, float("-inf"))
    left[nucleus] = (weights[nucleus] / weights[nucleus].sum()).log()
    return left


def test_processed_logprobs_are_those_of_the_distribution_drawn_from() -> None:
    asked = {"processed_logprobs": True}
    rows = [
        sampling(seed=1, **asked),
        sampling(seed=2, top_p=0.7, temperature=0.8, **asked),
        sampling(seed=3, top_k=3, min_tokens=20, **asked),
        sampling(seed=4, min_p=0.2, top_p=0.9, presence_penalty=0.7, **asked),
        sampling(seed=5, repetition_penalty=1.6, logit_bias=[[5, 6.0], [0, -1.0]], top_k=4, top_p=0.8, **asked),
    ]
    end = 0
    drawn = [[] for _ in rows]  # type: ignore[var-annotated]
    texts = [((), tokens) for tokens in drawn]
    draw = Draw(rows, [key_of(r.seed) for r in rows], [0] * 5, eos=torch.tensor([end]), device=CPU, texts=texts)
    order = np.arange(5)
    for position in range(40):
        logits = torch.randn(5, 6, generator=torch.Generator().manual_seed(position)) * 2
        tokens, logprobs = draw(logits)
        assert draw.processed is not None
        for place, number in enumerate(order):
            row = rows[number]
            token = int(tokens[place])
            expected = kept_logprobs(logits[place], row, drawn[number], end)[token]
            assert abs(float(draw.processed[place]) - float(expected)) < 1e-5
            own = torch.log_softmax(logits[place].double() / row.temperature, -1)[token]
            assert abs(float(logprobs[place]) - float(own)) < 1e-5, "the raw ones stay"
            drawn[number].append(token)
        if position == 20:
            turned = np.array([4, 2, 0, 3, 1])
            draw = draw.of(turned)
            order = order[turned]


def test_a_token_drawn_greedily_was_certain() -> None:
    alone = [sampling(temperature=0.0, processed_logprobs=True)]
    for rows in (alone, [*alone, sampling(top_k=2, seed=1)]):
        draw = Draw(rows, [0] * len(rows), [0] * len(rows), eos=NO_END, device=CPU)
        draw(LOGITS.expand(len(rows), -1))
        assert draw.processed is not None
        assert draw.processed[0] == 0.0
    usual = Draw([sampling(top_k=2)], [0], [0], eos=NO_END, device=CPU)
    usual(LOGITS[None])
    assert usual.processed is None


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
