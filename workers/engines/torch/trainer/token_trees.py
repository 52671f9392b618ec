"""Trees of tokens: which responses are computed together, and which of their tokens only once.

A tree is stored in depth-first order: a prompt, then the responses to it, sorted, so that each shares its beginning
with the response before it as far as with any. A token in a common beginning of several responses has one position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.stage.micro_batch import ranges


@dataclass(slots=True)
class Tree:
    """Samples of one prompt, in the order of the tree; the last token of each response has no position, because it
    predicts nothing.
    """

    members: list[int]
    """Numbers of the samples."""
    shared: list[int]
    """Number of tokens of each member's response that use the positions of the member before it."""
    length: int
    """Number of positions of all members together."""
    branches: bool = False
    """True if some positions do not attend to all positions before them."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The relative cost of a row by its number of positions: linear layers, and attention, which is quadratic."""

    hidden_size: int
    """Width of the model's hidden states."""

    def of(self, places: int) -> int:
        """Returns the cost, in units of one multiply-add per layer and hidden unit."""
        return places * (6 * self.hidden_size + places)


def trees_of(samples: Sequence[TrainSample], cost: Cost | None, budget_tokens: int) -> list[Tree]:
    """Groups samples into trees; a response joins a tree if that is cheaper. Without `cost`, one tree for each sample.

    `budget_tokens` is the maximum length of a tree with several members. The two responses of a pair join no other
    response, so that a pair is one tree or two.
    """
    if cost is None:
        return [Tree([number], [0], len(sample.tokens) - 1) for number, sample in enumerate(samples)]
    # As bytes: dictionaries and sorting compare them in C, and any order will do as long as equal beginnings are
    # neighbours.
    texts = [sample.tokens.tobytes() for sample in samples]
    groups: dict[tuple[int, bytes], list[int]] = {}
    for number, sample in enumerate(samples):
        prompt = texts[number][: sample.prompt_tokens * sample.tokens.itemsize]
        groups.setdefault((sample.pair, prompt), []).append(number)
    for group in groups.values():
        group.sort(key=texts.__getitem__)
    alike = iter(_common_lengths([samples[number] for group in groups.values() for number in group]))
    trees: list[Tree] = []
    for group in groups.values():
        tree: Tree | None = None
        for number, shared in zip(group, alike, strict=False):
            places = len(samples[number].tokens) - 1
            if tree is not None:
                # The prompt and what is shared with the member before are there already.
                joined = tree.length + places - samples[number].prompt_tokens - shared
                if joined <= budget_tokens and cost.of(joined) < cost.of(tree.length) + cost.of(places):
                    tree.branches |= joined > max(tree.length, places)
                    tree.members.append(number)
                    tree.shared.append(shared)
                    tree.length = joined
                    continue
            tree = Tree([number], [0], places)
            trees.append(tree)
    return trees


def arrange_rows(trees: Sequence[Tree], cost: Cost | None) -> list[list[Tree]]:
    """Arranges trees in rows: one each, or several if that saves more padding than longer rows cost.

    One each if no tree branches, because plainly causal attention is faster.
    """
    rows = [[tree] for tree in trees]
    if cost is None or not any(tree.branches for tree in trees):
        return rows
    while len(rows) > 1:
        rows.sort(key=_row_length)
        half = len(rows) // 2
        paired = [[*rows[-1 - number], *rows[number]] for number in range(half)] + [rows[half]] * (len(rows) % 2)
        if len(paired) * cost.of(max(map(_row_length, paired))) >= len(rows) * cost.of(_row_length(rows[-1])):
            break
        rows = paired
    return rows


def _row_length(row: Sequence[Tree]) -> int:
    """Returns the number of positions of a row of trees."""
    return sum(tree.length for tree in row)


def _common_lengths(samples: Sequence[TrainSample]) -> list[int]:
    """Returns the length of the common beginning of each response with the one before it, last tokens excluded  #
    [S]
    """
    tokens = np.concatenate([sample.tokens for sample in samples])
    lengths = np.array([len(sample.tokens) for sample in samples], np.int64)
    prompts = np.array([sample.prompt_tokens for sample in samples], np.int64)
    starts = np.cumsum(lengths) - lengths + prompts
    places = lengths - prompts - 1
    both = np.minimum(places[1:], places[:-1])
    differ = tokens[ranges(starts[1:], both)] != tokens[ranges(starts[:-1], both)]
    alike = both.copy()
    # at: several differences of one response compete, and plain indexing would keep the last one.
    np.minimum.at(alike, np.repeat(np.arange(len(both)), both)[differ], ranges(np.zeros_like(both), both)[differ])
    return [0, *alike.tolist()]
