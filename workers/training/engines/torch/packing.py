"""A batch as micro-batches of token rows: a pure function of the batch, without torch.

Responses to an equal prompt share a tree, prompt first, and each sees the prompt and itself only. So the prompt of a
group is computed once instead of once for each rollout, and so is every token that responses begin with alike: short
answers repeat each other. Trees of similar length go together, one or several in a row; a micro-batch has at most
`budget_tokens` places, or one tree. The two responses of a preference are in one micro-batch, and in one tree if that
is cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rftd.ops.errors import TrainError
from rftd.workers.training.engine import TrainSample
from rftd.workers.training.engines.torch.token_trees import Cost, Ints, Tree, laid_out, ranges, trees_of
from rftd.workers.training.losses.aggregation import Aggregation, TokenWeights

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch: B rows of L places, and the N trained tokens that they predict."""

    ids: Ints  # [B, L]
    positions: Ints  # [B, L], of each token in its own prompt + response
    ends: Ints | None  # [B, L], the first place after those that see this one; None: attention is plainly causal
    source: Ints  # [N], the place in B * L that predicts the token
    targets: Ints  # [N]
    inverse_temperature: Floats  # [N]
    old_logprobs: Floats  # [N]
    advantages: Floats  # [N]
    weights: TokenWeights[Floats]  # [N] each, of the sums of all samples that were packed with these
    expert: NDArray[np.bool_]  # [N]
    sequence: Ints  # [N], which response of this micro-batch
    sequences: int
    members: Ints  # [S], which sample of the batch each response is
    rewards: Floats  # [S]
    groups: Ints  # [S], index of its group within the batch; -1 without one
    versions: Ints | None  # [N], of the weights that drew the tokens; None if some are not known
    predictions: Predictions | None = None
    """The predictions that differ; None: each token is predicted by a place of its own."""
    pairs: Ints | None = None  # [S], which pair each response is of; None if the batch has none
    chosen: NDArray[np.bool_] | None = None  # [S], which are preferred, or desirable; None: nobody said of them all
    pairs_in_batch: int = 0
    responses_in_batch: int = 0
    chosen_in_batch: int = 0


@dataclass(frozen=True, slots=True)
class Predictions:
    """The U predictions of a micro-batch that differ by place, token or temperature."""

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
) -> list[MicroBatch]:
    """The micro-batches of a batch, or of the samples with these numbers alone.

    Raises TrainError for a sample whose arrays do not fit together.
    """
    numbers = range(len(batch)) if numbers is None else numbers
    samples = [batch[number] for number in numbers]
    for number, sample in zip(numbers, samples, strict=True):
        _check(number, sample)
    # Before micro-batches are made: a token's weight is that in all samples of the step, however they are cut.
    weights = aggregation.weights([sample.loss_mask for sample in samples], [sample.expert for sample in samples])
    counted = _Counted.of(samples)
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
    return [_micro_batch(samples, laid_out(trees, cost), weights, counted, of_batch) for trees in batches]


def _check(number: int, sample: TrainSample) -> None:
    response = len(sample.tokens) - sample.prompt_tokens
    lengths = {len(sample.loss_mask)}
    for part in (sample.logprobs, sample.advantages, sample.versions, sample.temperatures):
        if part is not None:
            lengths.add(len(part))
    if sample.prompt_tokens < 1 or response < 1 or lengths != {response}:
        raise TrainError(
            f"item {number} has {len(sample.tokens)} tokens, {sample.prompt_tokens} of them the prompt, and arrays of "
            f"length {sorted(lengths)} for its response",
            fix="a prompt and a response have at least one token each, and each array covers the response",
        )


@dataclass(frozen=True, slots=True)
class _Counted:
    """The numbers of pairs, responses and chosen ones with trained tokens that one optimizer step sees.

    Responses are counted for losses of labels; without a label in the batch there are none.
    """

    pairs: int
    responses: int
    chosen: int

    @classmethod
    def of(cls, samples: Sequence[TrainSample]) -> _Counted:
        """Raises TrainError if a pair is not whole."""
        pairs = _pairs(samples)
        # Rollouts have no labels, and a look at each of their masks takes a fifth of the time of packing them.
        if all(sample.chosen is None for sample in samples):
            return cls(pairs=pairs, responses=0, chosen=0)
        trained = [sample for sample in samples if sample.loss_mask.any()]
        chosen = sum(sample.chosen is True for sample in trained)
        return cls(pairs=pairs, responses=len(trained), chosen=chosen)


def _pairs(samples: Sequence[TrainSample]) -> int:
    """The number of pairs with trained tokens; 0 if the batch has no pairs. Raises TrainError if one is not whole."""
    if all(sample.pair < 0 for sample in samples):
        return 0
    members: dict[int, list[int]] = {}
    for number, sample in enumerate(samples):
        members.setdefault(sample.pair, []).append(number)
    single = members.pop(-1, [])
    for pair, numbers in members.items():
        if single or sorted(samples[number].chosen is True for number in numbers) != [False, True]:
            raise TrainError(
                f"pair {pair} has the items {numbers}" + (", others of the batch have no pair" if single else ""),
                fix="a preference is two items, one of them chosen, and a batch has preferences only",
            )
    return sum(any(samples[number].loss_mask.any() for number in numbers) for numbers in members.values())


def _blocks(trees: Sequence[Tree], samples: Sequence[TrainSample]) -> list[tuple[int, list[Tree]]]:
    """The trees that one micro-batch must have together, the two of a pair or one, with their length; shortest
    first."""
    blocks: dict[int, tuple[int, list[Tree]]] = {}
    for number, tree in enumerate(trees):
        pair = samples[tree.members[0]].pair
        key = pair if pair >= 0 else -1 - number
        longest, block = blocks.get(key, (0, []))
        blocks[key] = (max(longest, tree.length), [*block, tree])
    return sorted(blocks.values(), key=lambda block: (block[0], block[1][0].members[0]))


def _micro_batch(
    samples: Sequence[TrainSample],
    rows: Sequence[Sequence[Tree]],
    weights: TokenWeights[NDArray[np.float64]],
    counted: _Counted,
    numbers: Ints,
) -> MicroBatch:
    order = [number for row in rows for tree in row for number in tree.members]
    chosen = [samples[number] for number in order]
    places = _Places.of(chosen, rows)
    lengths = np.array([len(sample.loss_mask) for sample in chosen], np.int64)
    trained = np.concatenate([sample.loss_mask for sample in chosen]) != 0
    sequence = np.repeat(np.arange(len(chosen)), lengths)[trained]
    # The place that predicts a token is the one before it, which may lie in the prompt or in another response's branch.
    source = places.sources[sequence, ranges(np.zeros_like(lengths), lengths)[trained]]
    responses = np.concatenate([sample.tokens[sample.prompt_tokens :] for sample in chosen])
    targets = responses[trained].astype(np.int64)
    inverse = _inverse_temperature(chosen, trained)
    return MicroBatch(
        ids=places.ids,
        positions=places.positions,
        ends=places.ends,
        source=source,
        targets=targets,
        inverse_temperature=inverse,
        old_logprobs=_trained(chosen, [sample.logprobs for sample in chosen], trained),
        advantages=_trained(chosen, [sample.advantages for sample in chosen], trained),
        weights=weights.map(lambda each: each[order].astype(np.float32)[sequence]),
        expert=np.array([sample.expert for sample in chosen], np.bool_)[sequence],
        sequence=sequence,
        sequences=len(chosen),
        predictions=_predictions(source, targets, inverse) if len(order) > sum(map(len, rows)) else None,
        pairs=np.unique([sample.pair for sample in chosen], return_inverse=True)[1] if counted.pairs else None,
        chosen=_chosen(chosen),
        pairs_in_batch=counted.pairs,
        responses_in_batch=counted.responses,
        chosen_in_batch=counted.chosen,
        members=numbers[order],
        rewards=np.array([sample.reward for sample in chosen], np.float32),
        groups=np.array([sample.group for sample in chosen], np.int64),
        versions=_versions(chosen, trained),
    )


def _chosen(samples: Sequence[TrainSample]) -> NDArray[np.bool_] | None:
    """True for the responses that are preferred, or desirable; None if one has no label  # [S]"""
    labels = [sample.chosen for sample in samples]
    # Labels of some responses alone would train the others as undesirable ones.
    return None if None in labels else np.array(labels, np.bool_)


@dataclass(frozen=True, slots=True)
class _Places:
    """The places of the tokens of S responses, of up to R tokens, in B rows."""

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
        row = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
        before = np.cumsum(length) - length
        first_of_row = np.searchsorted(row, np.arange(len(rows)))
        base = row * width + before - before[first_of_row][row]  # where each tree begins
        # Of each member from here on.
        tree = np.repeat(np.arange(len(trees)), [len(each.members) for each in trees])
        first = np.searchsorted(tree, np.arange(len(trees)))
        prompt = np.array([sample.prompt_tokens for sample in chosen], np.int64)
        places = np.array([len(sample.loss_mask) - 1 for sample in chosen], np.int64)
        shared = np.array([count for each in trees for count in each.shared], np.int64)
        # A member's fresh places follow those of the member before it, behind the prompt of their tree.
        fresh = np.cumsum(places - shared) - (places - shared)
        start = base[tree] + prompt + fresh - fresh[first][tree]  # of its fresh places
        depth = np.arange(int(places.max(initial=0)))
        is_fresh = (depth >= shared[:, None]) & (depth < places[:, None])  # [S, R - 1]
        place = np.where(is_fresh, (start - shared)[:, None] + depth, 0)
        # Places grow along a tree, so the largest one above is that of the last member which had a fresh one here.
        np.maximum.accumulate(place, axis=0, out=place)
        member, at = np.nonzero(is_fresh)
        own = place[is_fresh]
        texts = [sample.tokens for sample in chosen]
        in_prompt = ranges(base, prompt[first])
        text_start = np.cumsum(places + prompt + 1) - places - 1  # where each response begins among all tokens
        ids, positions = np.zeros((2, len(rows), width), np.int64)
        ids.ravel()[in_prompt] = np.concatenate([texts[n][: prompt[n]] for n in first])
        ids.ravel()[own] = np.concatenate(texts)[text_start[member] + at]
        positions.ravel()[in_prompt] = ranges(np.zeros_like(first), prompt[first])
        positions.ravel()[own] = prompt[member] + at
        ends = None
        if len(trees) > len(rows) or any(each.branches for each in trees):
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
            sources=np.concatenate([(base[tree] + prompt - 1)[:, None], place], axis=1),
        )


def _predictions(source: Ints, targets: Ints, inverse_temperature: Floats) -> Predictions | None:
    kinds, kind = np.unique(inverse_temperature, return_inverse=True)
    # One number for (place, token, temperature), in int64: places times vocabulary stays far below 2^63.
    key = (source * (int(targets.max(initial=0)) + 1) + targets) * len(kinds) + kind
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return Predictions(first, which) if len(first) < len(key) else None


def _inverse_temperature(samples: Sequence[TrainSample], trained: NDArray[np.bool_]) -> Floats:
    """The inverse of the temperature at which each trained token was drawn  # [N]

    Greedy responses carry log-probabilities at temperature 1.
    """
    parts = [
        np.ones(len(sample.loss_mask)) if sample.temperatures is None else sample.temperatures for sample in samples
    ]
    temperatures = np.concatenate(parts)[trained]
    inverse: Floats = (1.0 / np.where(temperatures > 0, temperatures, 1.0)).astype(np.float32)
    return inverse


def _versions(samples: Sequence[TrainSample], trained: NDArray[np.bool_]) -> Ints | None:
    if any(sample.versions is None and not sample.expert for sample in samples):
        return None
    parts = [
        # An expert's rows have no version, and no correction looks at them.
        np.zeros(len(sample.loss_mask), np.int64) if sample.versions is None else sample.versions
        for sample in samples
    ]
    versions: Ints = np.concatenate(parts)[trained]
    return versions


def _trained(samples: Sequence[TrainSample], parts: Sequence[Floats | None], trained: NDArray[np.bool_]) -> Floats:
    """The trained tokens' values, zeros where a sample has none  # [N]"""
    known = [
        np.zeros(len(sample.loss_mask), np.float32) if part is None else part
        for sample, part in zip(samples, parts, strict=True)
    ]
    values: Floats = np.concatenate(known)[trained].astype(np.float32)
    return values
