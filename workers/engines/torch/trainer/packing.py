"""A batch as trees of tokens, and as micro-batches of their rows: a pure function of the batch, without torch.

Responses to an equal prompt share a tree, prompt first, and each attends to the prompt and itself only. So the prompt
of a group is computed once instead of once for each rollout, and so is every common beginning of responses, which short
answers often have. Trees of similar length are packed together, one or several in a row; a micro-batch has at most
`budget_tokens` positions, or one tree. The two responses of a preference are in one micro-batch, and in one tree if
that is cheaper.

A tree is stored in depth-first order: a prompt, then the responses to it, sorted, so that each shares its beginning
with the response before it as far as with any. A token in a common beginning of several responses has one position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.losses.aggregation import Aggregation
from rftd.workers.learning.stage.micro_batch import Floats, Ints, MicroBatch, StepSums, ranges


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
    """Returns the length of the common beginning of each response with the one before it, last tokens excluded
    # [S]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows(MicroBatch):
    """A micro-batch as B rows of L positions, predicting N trained tokens."""

    ids: Ints  # [B, L]
    positions: Ints  # [B, L], of each token in its own prompt + response
    ends: Ints | None  # [B, L], the first place after those that see this one; None: attention is plainly causal
    source: Ints  # [N], the place in B * L that predicts the token
    predictions: Predictions | None = None
    """The distinct predictions; None: each token is predicted by a separate position."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """The U distinct predictions of a micro-batch, by position, token and temperature."""

    first: Ints  # [U], a token that each is of
    which: Ints  # [N], the prediction of each token


def pack(
    batch: Sequence[TrainSample],
    *,
    budget_tokens: int,
    aggregation: Aggregation,
    hidden_size: int,
    share: bool,
    numbers: Sequence[int] | None = None,
) -> list[PackedRows]:
    """Returns the micro-batches of a batch, or only of the samples with these `numbers`.

    `budget_tokens` is the maximum number of positions of a micro-batch; `share`: responses to one prompt may share a
    tree; `hidden_size` weighs attention against linear layers. Raises TrainError for a sample with arrays of unequal
    length.
    """
    numbers = range(len(batch)) if numbers is None else numbers
    samples = [batch[number] for number in numbers]
    # Before micro-batches are made: a token's weight is that in all samples of the step, however they are cut.
    step = StepSums.of(samples, numbers, aggregation)
    cost = Cost(hidden_size) if share else None
    batches: list[list[Tree]] = []
    longest = 0
    # By length, so that rows of a micro-batch are padded little.
    for length, block in _blocks(trees_of(samples, cost, budget_tokens), samples):
        longest = max(longest, length)
        if not batches or (len(batches[-1]) + len(block)) * longest > budget_tokens:
            batches.append([])
            longest = length
        batches[-1] += block
    of_batch = np.array(numbers, np.int64)
    return [_rows(samples, arrange_rows(trees, cost), of_batch, step) for trees in batches]


def _blocks(trees: Sequence[Tree], samples: Sequence[TrainSample]) -> list[tuple[int, list[Tree]]]:
    """Returns the blocks of trees that must share a micro-batch (both of a pair, or a single one) with their length,
    the shortest first.
    """
    blocks: dict[int, tuple[int, list[Tree]]] = {}
    for number, tree in enumerate(trees):
        pair = samples[tree.members[0]].pair
        key = pair if pair >= 0 else -1 - number
        longest, block = blocks.get(key, (0, []))
        blocks[key] = (max(longest, tree.length), [*block, tree])
    return sorted(blocks.values(), key=lambda block: (block[0], block[1][0].members[0]))


def _rows(samples: Sequence[TrainSample], rows: Sequence[Sequence[Tree]], numbers: Ints, step: StepSums) -> PackedRows:
    """Builds a micro-batch from rows of trees; `numbers` are the samples' numbers in the step."""
    order = [number for row in rows for tree in row for number in tree.members]
    chosen = [samples[number] for number in order]
    places = _Places.of(chosen, rows)
    tokens = MicroBatch.of(chosen, numbers[order], order, step)
    # The place that predicts a token is the one before it, which may lie in the prompt or in another response's branch.
    source = places.sources[tokens.sequence, tokens.places]
    shared = len(order) > sum(map(len, rows))
    return PackedRows(
        **tokens.columns(),
        ids=places.ids,
        positions=places.positions,
        ends=places.ends,
        source=source,
        predictions=_predictions(source, tokens.targets, tokens.inverse_temperature) if shared else None,
    )


@dataclass(frozen=True, slots=True)
class _Places:
    """Positions of the tokens of S responses, of up to R tokens, in B rows."""

    ids: Ints  # [B, L]
    positions: Ints  # [B, L]
    ends: Ints | None  # [B, L]
    sources: Ints  # [S, R], the place in B * L that predicts each token

    @classmethod
    def of(cls, chosen: Sequence[TrainSample], rows: Sequence[Sequence[Tree]]) -> _Places:
        """`chosen` are the members of the rows' trees, in their order."""
        trees = [tree for row in rows for tree in row]
        width = max(sum(tree.length for tree in row) for row in rows)
        length = np.array([tree.length for tree in trees], np.int64)
        row = np.repeat(np.arange(len(rows)), [len(trees_of_row) for trees_of_row in rows])
        before = np.cumsum(length) - length
        first_of_row = np.searchsorted(row, np.arange(len(rows)))
        base = row * width + before - before[first_of_row][row]  # where each tree begins
        # Of each member from here on.
        tree = np.repeat(np.arange(len(trees)), [len(tree.members) for tree in trees])
        first = np.searchsorted(tree, np.arange(len(trees)))
        prompt = np.array([sample.prompt_tokens for sample in chosen], np.int64)
        places = np.array([len(sample.loss_mask) - 1 for sample in chosen], np.int64)
        shared = np.array([count for tree in trees for count in tree.shared], np.int64)
        # A member's fresh places follow those of the member before it, behind the prompt of their tree.
        fresh = np.cumsum(places - shared) - (places - shared)
        start = base[tree] + prompt + fresh - fresh[first][tree]  # of its fresh places
        depth = np.arange(int(places.max(initial=0)))
        is_fresh = (depth >= shared[:, None]) & (depth < places[:, None])  # [S, R - 1]
        fresh_places = np.where(is_fresh, (start - shared)[:, None] + depth, 0)
        # Places grow along a tree, so the largest one above is that of the last member which had a fresh one here.
        np.maximum.accumulate(fresh_places, axis=0, out=fresh_places)
        member, at = np.nonzero(is_fresh)
        own = fresh_places[is_fresh]
        texts = [sample.tokens for sample in chosen]
        in_prompt = ranges(base, prompt[first])
        text_start = np.cumsum(places + prompt + 1) - places - 1  # where each response begins among all tokens
        ids, positions = np.zeros((2, len(rows), width), np.int64)
        ids.ravel()[in_prompt] = np.concatenate([texts[n][: prompt[n]] for n in first])
        ids.ravel()[own] = np.concatenate(texts)[text_start[member] + at]
        positions.ravel()[in_prompt] = ranges(np.zeros_like(first), prompt[first])
        positions.ravel()[own] = prompt[member] + at
        ends = None
        if len(trees) > len(rows) or any(tree.branches for tree in trees):
            # A place is seen up to the next member that leaves the path before it, or to the end of its tree.
            leaves = np.where(depth >= shared[:, None], start[:, None], len(rows) * width)
            until = np.minimum.accumulate(leaves[::-1], axis=0)[::-1]
            last = (base + length)[tree][:, None]
            until = np.minimum(np.concatenate([until[1:], last[-1:].repeat(len(depth), 1)]), last)[is_fresh]
            ends = np.tile(np.arange(1, width + 1), (len(rows), 1))
            ends.ravel()[in_prompt] = np.repeat(base + length - row * width, prompt[first])
            ends.ravel()[own] = until - row[tree[member]] * width
        return cls(
            ids=ids,
            positions=positions,
            ends=ends,
            # The first token of a response is predicted by the prompt's last.
            sources=np.concatenate([(base[tree] + prompt - 1)[:, None], fresh_places], axis=1),
        )


def _predictions(source: Ints, targets: Ints, inverse_temperature: Floats) -> Predictions | None:
    """Returns the distinct predictions; None if all tokens are predicted differently."""
    kinds, kind = np.unique(inverse_temperature, return_inverse=True)
    # One number for (place, token, temperature), in int64: places times vocabulary stays far below 2^63.
    key = (source * (int(targets.max(initial=0)) + 1) + targets) * len(kinds) + kind
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return Predictions(first, which) if len(first) < len(key) else None
