"""A batch as micro-batches of complete texts: a pure function of the batch, without torch.

Texts of similar length are packed together. The two responses of a preference are in one micro-batch. The number of
micro-batches is divisible by the number of shares, if there are enough texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.losses.aggregation import Aggregation
from rftd.workers.learning.stage.micro_batch import Floats, Ints, MicroBatch, StepSums


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTexts(MicroBatch):
    """A micro-batch as S texts of P tokens in total, one after the other."""

    ids: Ints  # [P]
    lengths: Ints  # [S]
    source: Ints  # [N], the place in P that predicts the token
    temperatures: Floats  # [S]; 1 where those of a text differ
    inverse_temperatures: Floats | None  # [P], by which logits are multiplied beside, where those of a text differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of a rank's micro-batch."""

    tokens: int
    """Maximum number of positions."""
    padded: bool
    """True: each text occupies as many positions as the longest of its micro-batch."""
    texts: int = 0
    """Maximum number of texts; 0: limited by `tokens` instead."""
    shares: int = 1
    """Number of shares among which the micro-batches of a step are divided."""

    def holds(self, lengths: Sequence[int]) -> bool:
        """True if texts of these lengths fit into one micro-batch."""
        if self.texts:
            return len(lengths) <= self.texts
        return (max(lengths) * len(lengths) if self.padded else sum(lengths)) <= self.tokens


def pack(
    batch: Sequence[TrainSample], numbers: Sequence[int], aggregation: Aggregation, budget: Budget
) -> list[PackedTexts]:
    """Returns the micro-batches of the samples with these `numbers`. Raises TrainError for a sample with arrays of
    unequal length.
    """
    samples = [batch[number] for number in numbers]
    # Before micro-batches are made: a token's weight is that in all samples of the step, however they are cut.
    step = StepSums.of(samples, numbers, aggregation)
    groups: list[list[list[int]]] = []
    for block in _blocks(samples):
        together = [*groups[-1], block] if groups else [block]
        if groups and budget.holds([len(samples[number].tokens) for block in together for number in block]):
            groups[-1] = together
        else:
            groups.append([block])
    groups = _split_evenly(groups, budget.shares)
    of_batch = np.array(numbers, np.int64)
    return [_texts(samples, [number for block in group for number in block], of_batch, step) for group in groups]


def _blocks(samples: Sequence[TrainSample]) -> list[list[int]]:
    """Returns the samples that must share a micro-batch, two of a pair or a single one; shortest first."""
    blocks: dict[int, list[int]] = {}
    for number, sample in enumerate(samples):
        blocks.setdefault(sample.pair if sample.pair >= 0 else -1 - number, []).append(number)
    return sorted(blocks.values(), key=lambda block: (max(len(samples[number].tokens) for number in block), block[0]))


def _split_evenly(groups: list[list[list[int]]], shares: int) -> list[list[list[int]]]:
    """Halves the largest groups until their number is divisible by `shares`, because ranks wait for each other, or no
    group can be split.
    """
    groups = list(groups)
    while len(groups) % shares:
        largest = max(range(len(groups)), key=lambda number: len(groups[number]))
        group = groups[largest]
        if len(group) < 2:
            break
        half = len(group) // 2
        groups[largest : largest + 1] = [group[:half], group[half:]]
    return groups


def _texts(samples: Sequence[TrainSample], order: Sequence[int], numbers: Ints, step: StepSums) -> PackedTexts:
    """Builds a micro-batch from the samples at the positions `order`; `numbers` are the samples' numbers in the
    step.
    """
    chosen = [samples[number] for number in order]
    tokens = MicroBatch.of(chosen, numbers[list(order)], order, step)
    lengths = np.array([len(sample.tokens) for sample in chosen], np.int64)
    prompts = np.array([sample.prompt_tokens for sample in chosen], np.int64)
    starts = np.cumsum(lengths) - lengths
    # The first token of a response is predicted by the prompt's last.
    source = (starts + prompts - 1)[tokens.sequence] + tokens.places
    temperatures = np.ones(len(chosen), np.float32)
    inverse = np.ones(int(lengths.sum()), np.float32)
    mixed = False
    ends = np.cumsum(tokens.counts())
    for text, (end, count) in enumerate(zip(ends, tokens.counts(), strict=True)):
        mine = slice(end - count, end)
        kinds = np.unique(tokens.inverse_temperature[mine])
        if len(kinds) == 1:
            temperatures[text] = 1.0 / kinds[0]
        elif len(kinds):
            mixed = True
            inverse[source[mine]] = tokens.inverse_temperature[mine]
    return PackedTexts(
        **tokens.columns(),
        ids=np.concatenate([sample.tokens for sample in chosen]).astype(np.int64),
        lengths=lengths,
        source=source,
        temperatures=temperatures,
        inverse_temperatures=inverse if mixed else None,
    )
