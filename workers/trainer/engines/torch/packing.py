"""A batch as micro-batches of token rows: a pure function of the batch, without torch.

Responses to an equal prompt share a row, prompt first, and each sees the prompt and itself only. So the prompt of a
group is computed once instead of once for each rollout. The last token of a response predicts nothing and is left out.
Rows of similar length go together; a micro-batch has at most `budget_tokens` places, or one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rftd.ops.errors import TrainError
from rftd.workers.algorithms.aggregation import Aggregation, TokenWeights
from rftd.workers.trainer.engine import TrainSample

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

PROMPT, PADDING = 0, -1
"""Segments that are no response; responses count from 1 in each row."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B rows of L places, and the N trained tokens that they predict."""

    ids: Ints  # [B, L]
    positions: Ints  # [B, L], of each token in its own prompt + response
    segments: Ints | None  # [B, L]; None if no row is shared: attention is then plainly causal
    source: Ints  # [N], the place in B * L that predicts the token
    targets: Ints  # [N]
    inverse_temperature: Floats  # [N]
    old_logprobs: Floats  # [N]
    advantages: Floats  # [N]
    weights: TokenWeights[Floats]  # [N] each, of the whole batch's sums
    expert: NDArray[np.bool_]  # [N]
    sequence: Ints  # [N], which response of this micro-batch
    sequences: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Relative cost of a row of so many tokens: linear layers, and attention, which grows with the square."""

    hidden_size: int

    def of(self, tokens: int) -> int:
        """In units of one multiply-add per layer and hidden unit."""
        return tokens * (6 * self.hidden_size + tokens)


def pack(
    samples: Sequence[TrainSample], *, budget_tokens: int, aggregation: Aggregation, hidden_size: int, share: bool
) -> list[MicroBatch]:
    """The micro-batches of a batch. Raises TrainError for a sample whose arrays do not fit together."""
    for number, sample in enumerate(samples):
        _check(number, sample)
    weights = aggregation.weights([sample.loss_mask for sample in samples], [sample.expert for sample in samples])
    rows = _rows(samples, Cost(hidden_size) if share else None, budget_tokens)
    batches: list[list[list[int]]] = []
    longest = 0
    for length, row in rows:
        longest = max(longest, length)
        if not batches or (len(batches[-1]) + 1) * longest > budget_tokens:
            batches.append([])
            longest = length
        batches[-1].append(row)
    return [_micro_batch(samples, batch, weights) for batch in batches]


def _check(number: int, sample: TrainSample) -> None:
    response = len(sample.tokens) - sample.prompt_tokens
    lengths = {len(sample.loss_mask)}
    lengths |= {len(part) for part in (sample.logprobs, sample.advantages) if part is not None}
    if sample.prompt_tokens < 1 or response < 1 or lengths != {response}:
        raise TrainError(
            f"item {number} has {len(sample.tokens)} tokens, {sample.prompt_tokens} of them the prompt, and arrays of "
            f"length {sorted(lengths)} for its response",
            fix="a prompt and a response have at least one token each, and each array covers the response",
        )


def _rows(samples: Sequence[TrainSample], cost: Cost | None, budget_tokens: int) -> list[tuple[int, list[int]]]:
    """(length, samples) of each row, shortest first. A response joins a row if that is cheaper than one of its own."""
    rows: list[tuple[int, list[int]]] = []
    last_of: dict[bytes, int] = {}
    for number, sample in enumerate(samples):
        places = len(sample.tokens) - 1
        if cost is not None:
            key = sample.tokens[: sample.prompt_tokens].tobytes()
            at = last_of.get(key)
            if at is not None:
                length, row = rows[at]
                joined = length + places - sample.prompt_tokens
                if joined <= budget_tokens and cost.of(joined) < cost.of(length) + cost.of(places):
                    rows[at] = (joined, [*row, number])
                    continue
            last_of[key] = len(rows)
        rows.append((places, [number]))
    return sorted(rows, key=lambda row: (row[0], row[1][0]))


def _micro_batch(
    samples: Sequence[TrainSample], rows: list[list[int]], weights: TokenWeights[NDArray[np.float64]]
) -> MicroBatch:
    order = [number for row in rows for number in row]
    width = max(
        samples[row[0]].prompt_tokens + sum(len(samples[n].loss_mask) - 1 for n in row) for row in rows
    )  # the last token of each response needs no place
    ids = np.zeros((len(rows), width), np.int64)
    positions = np.zeros((len(rows), width), np.int64)
    segments = np.full((len(rows), width), PADDING, np.int64)
    sources: list[Ints] = []
    targets: list[NDArray[np.uint32]] = []
    for number, row in enumerate(rows):
        first = samples[row[0]]
        prompt = end = first.prompt_tokens
        ids[number, :prompt] = first.tokens[:prompt]
        positions[number, :prompt] = np.arange(prompt)
        segments[number, :prompt] = PROMPT
        for segment, member in enumerate(row, 1):
            sample = samples[member]
            response = sample.tokens[prompt:]
            start, end = end, end + len(response) - 1
            ids[number, start:end] = response[:-1]
            positions[number, start:end] = np.arange(prompt, prompt + end - start)
            segments[number, start:end] = segment
            trained = np.flatnonzero(sample.loss_mask)
            # The first token of a response is predicted by the prompt's last.
            sources.append(number * width + np.where(trained == 0, prompt, start + trained) - 1)
            targets.append(response[trained])
    chosen = [samples[number] for number in order]
    counts = np.array([len(part) for part in targets])
    return MicroBatch(
        ids=ids,
        positions=positions,
        segments=segments if len(order) > len(rows) else None,
        source=np.concatenate(sources),
        targets=np.concatenate(targets).astype(np.int64),
        inverse_temperature=np.repeat(np.array([_inverse(s.temperature) for s in chosen], np.float32), counts),
        old_logprobs=_trained(chosen, [sample.logprobs for sample in chosen]),
        advantages=_trained(chosen, [sample.advantages for sample in chosen]),
        weights=weights.map(lambda each: np.repeat(each[order].astype(np.float32), counts)),
        expert=np.repeat(np.array([sample.expert for sample in chosen], np.bool_), counts),
        sequence=np.repeat(np.arange(len(chosen)), counts),
        sequences=len(chosen),
    )


def _inverse(temperature: float) -> float:
    """Greedy responses carry log-probabilities at temperature 1."""
    return 1.0 / temperature if temperature > 0 else 1.0


def _trained(samples: Sequence[TrainSample], parts: Sequence[Floats | None]) -> Floats:
    """The trained tokens' values, zeros where a sample has none  # [N]"""
    values: Floats = np.concatenate(
        [
            np.zeros(np.count_nonzero(sample.loss_mask), np.float32) if part is None else part[sample.loss_mask != 0]
            for sample, part in zip(samples, parts, strict=True)
        ]
    ).astype(np.float32)
    return values
