"""Rows of places: which responses are computed together, and what of them is computed once.

A row is a tree of tokens in depth-first order: a prompt, and below it the responses to it, sorted, so that each shares
with the one before it all that it shares with any. A token that several responses begin with alike has one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rftd.workers.trainer.engine import TrainSample

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Row:
    """Samples of one prompt, in the order of the tree. A response's last token predicts nothing and is left out."""

    members: list[int]
    shared: list[int]
    """So many tokens of each member's response have the places of the one before it."""
    length: int
    """Places of all of them."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Relative cost of a row of so many tokens: linear layers, and attention, which grows with the square."""

    hidden_size: int

    def of(self, tokens: int) -> int:
        """In units of one multiply-add per layer and hidden unit."""
        return tokens * (6 * self.hidden_size + tokens)


def rows_of(samples: Sequence[TrainSample], cost: Cost | None, budget_tokens: int) -> list[Row]:
    """The rows of a batch; without `cost` each sample is one. A response joins a row if that is cheaper than its own.

    The responses of a pair join nobody else, so that a pair is one row or two.
    """
    if cost is None:
        return [Row([number], [0], len(sample.tokens) - 1) for number, sample in enumerate(samples)]
    texts = [sample.tokens.tobytes() for sample in samples]
    groups: dict[tuple[int, bytes], list[int]] = {}
    for number, sample in enumerate(samples):
        prompt = texts[number][: sample.prompt_tokens * sample.tokens.itemsize]
        groups.setdefault((sample.pair, prompt), []).append(number)
    for group in groups.values():
        group.sort(key=texts.__getitem__)
    alike = iter(_alike([samples[number] for group in groups.values() for number in group]))
    rows: list[Row] = []
    for group in groups.values():
        row: Row | None = None
        for number, shared in zip(group, alike, strict=False):
            places = len(samples[number].tokens) - 1
            if row is not None:
                joined = row.length + places - samples[number].prompt_tokens - shared
                if joined <= budget_tokens and cost.of(joined) < cost.of(row.length) + cost.of(places):
                    row.members.append(number)
                    row.shared.append(shared)
                    row.length = joined
                    continue
            row = Row([number], [0], places)
            rows.append(row)
    return rows


def ranges(starts: Ints, counts: Ints) -> Ints:
    """start, start + 1, ... for each pair, one after the other."""
    before = np.cumsum(counts) - counts
    found: Ints = np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
    return found


def _alike(samples: Sequence[TrainSample]) -> list[int]:
    """With how many tokens each response begins like the one before it; neither's last counts  # [S]"""
    tokens = np.concatenate([sample.tokens for sample in samples])
    lengths = np.array([len(sample.tokens) for sample in samples], np.int64)
    prompts = np.array([sample.prompt_tokens for sample in samples], np.int64)
    starts, places = np.cumsum(lengths) - lengths + prompts, lengths - prompts - 1
    both = np.minimum(places[1:], places[:-1])
    differ = tokens[ranges(starts[1:], both)] != tokens[ranges(starts[:-1], both)]
    alike = both.copy()
    np.minimum.at(alike, np.repeat(np.arange(len(both)), both)[differ], ranges(np.zeros_like(both), both)[differ])
    return [0, *alike.tolist()]
