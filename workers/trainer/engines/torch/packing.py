"""A batch as micro-batches of token rows: a pure function of the batch, without torch.

Responses to an equal prompt share a row, prompt first, and each sees the prompt and itself only. So the prompt of a
group is computed once instead of once for each rollout. The last token of a response predicts nothing and is left out.
Rows of similar length go together; a micro-batch has at most `budget_tokens` places, or one row. The two responses of a
preference are in one micro-batch, and in one row if that is cheaper.
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
    rewards: Floats  # [S]
    versions: Ints | None  # [N], of the weights that drew the tokens; None if some are not known
    pairs: Ints | None = None  # [S], which pair each response is of; None if the batch has none
    chosen: NDArray[np.bool_] | None = None  # [S]
    pairs_in_batch: int = 0


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
    paired = _pairs(samples)
    batches: list[list[list[int]]] = []
    longest = 0
    for length, block in _blocks(_rows(samples, Cost(hidden_size) if share else None, budget_tokens), samples):
        longest = max(longest, length)
        if not batches or (len(batches[-1]) + len(block)) * longest > budget_tokens:
            batches.append([])
            longest = length
        batches[-1] += block
    return [_micro_batch(samples, batch, weights, paired) for batch in batches]


def _check(number: int, sample: TrainSample) -> None:
    response = len(sample.tokens) - sample.prompt_tokens
    lengths = {len(sample.loss_mask)}
    lengths |= {len(part) for part in (sample.logprobs, sample.advantages, sample.versions) if part is not None}
    if sample.prompt_tokens < 1 or response < 1 or lengths != {response}:
        raise TrainError(
            f"item {number} has {len(sample.tokens)} tokens, {sample.prompt_tokens} of them the prompt, and arrays of "
            f"length {sorted(lengths)} for its response",
            fix="a prompt and a response have at least one token each, and each array covers the response",
        )


def _pairs(samples: Sequence[TrainSample]) -> int:
    """How many pairs have trained tokens; 0 if the batch has no pairs. Raises TrainError if one is not whole."""
    members: dict[int, list[int]] = {}
    for number, sample in enumerate(samples):
        members.setdefault(sample.pair, []).append(number)
    single = members.pop(-1, [])
    for pair, numbers in members.items():
        if single or sorted(samples[number].chosen for number in numbers) != [False, True]:
            raise TrainError(
                f"pair {pair} has the items {numbers}" + (", others of the batch have no pair" if single else ""),
                fix="a preference is two items, one of them chosen, and a batch has preferences only",
            )
    return sum(any(samples[number].loss_mask.any() for number in numbers) for numbers in members.values())


def _blocks(rows: list[tuple[int, list[int]]], samples: Sequence[TrainSample]) -> list[tuple[int, list[list[int]]]]:
    """(length, rows) of rows that one micro-batch must have together, shortest first: the two of a pair, or one."""
    blocks: dict[int, tuple[int, list[list[int]]]] = {}
    for number, (length, row) in enumerate(rows):
        key = samples[row[0]].pair if samples[row[0]].pair >= 0 else -1 - number
        longest, block = blocks.get(key, (0, []))
        blocks[key] = (max(longest, length), [*block, row])
    return sorted(blocks.values(), key=lambda block: (block[0], block[1][0][0]))


def _rows(samples: Sequence[TrainSample], cost: Cost | None, budget_tokens: int) -> list[tuple[int, list[int]]]:
    """(length, samples) of each row. A response joins a row if that is cheaper than one of its own.

    The responses of a pair join nobody else, so that a pair is one row or two.
    """
    rows: list[tuple[int, list[int]]] = []
    last_of: dict[tuple[int, bytes], int] = {}
    for number, sample in enumerate(samples):
        places = len(sample.tokens) - 1
        if cost is not None:
            key = (sample.pair, sample.tokens[: sample.prompt_tokens].tobytes())
            at = last_of.get(key)
            if at is not None:
                length, row = rows[at]
                joined = length + places - sample.prompt_tokens
                if joined <= budget_tokens and cost.of(joined) < cost.of(length) + cost.of(places):
                    rows[at] = (joined, [*row, number])
                    continue
            last_of[key] = len(rows)
        rows.append((places, [number]))
    return rows


def _micro_batch(
    samples: Sequence[TrainSample], rows: list[list[int]], weights: TokenWeights[NDArray[np.float64]], paired: int
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
        pairs=np.unique([sample.pair for sample in chosen], return_inverse=True)[1] if paired else None,
        chosen=np.array([sample.chosen for sample in chosen], np.bool_) if paired else None,
        pairs_in_batch=paired,
        rewards=np.array([sample.reward for sample in chosen], np.float32),
        versions=_versions(chosen),
    )


def _inverse(temperature: float) -> float:
    """Greedy responses carry log-probabilities at temperature 1."""
    return 1.0 / temperature if temperature > 0 else 1.0


def _versions(samples: Sequence[TrainSample]) -> Ints | None:
    if any(sample.versions is None and not sample.expert for sample in samples):
        return None
    versions: Ints = np.concatenate(
        [
            np.zeros(np.count_nonzero(sample.loss_mask), np.int64)
            if sample.versions is None
            else sample.versions[sample.loss_mask != 0]
            for sample in samples
        ]
    )
    return versions


def _trained(samples: Sequence[TrainSample], parts: Sequence[Floats | None]) -> Floats:
    """The trained tokens' values, zeros where a sample has none  # [N]"""
    values: Floats = np.concatenate(
        [
            np.zeros(np.count_nonzero(sample.loss_mask), np.float32) if part is None else part[sample.loss_mask != 0]
            for sample, part in zip(samples, parts, strict=True)
        ]
    ).astype(np.float32)
    return values
