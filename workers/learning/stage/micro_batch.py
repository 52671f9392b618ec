"""`MicroBatch`: responses of a batch as columns of trained tokens, for any engine's layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rftd.ops.errors import TrainError
from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.losses.aggregation import OBSERVED, Aggregation, TokenWeights

Ints = NDArray[np.int64]
"""Array of whole numbers."""
Floats = NDArray[np.float32]
"""Array of float32 numbers."""


@dataclass(frozen=True, slots=True)
class StepSums:
    """Token weights and counts over all samples of one optimizer step, from which each micro-batch takes its share.

    Responses are counted only if every sample has a label.
    """

    weights: TokenWeights[NDArray[np.float64]]  # [B] each, of one trained token of each sample
    pairs: int
    """Number of pairs with trained tokens."""
    responses: int
    """Number of labelled responses with trained tokens."""
    chosen: int
    """Number of preferred or desirable responses among `responses`."""
    observations: bool = False
    """True: the weights have a second row for each sample, of observed tokens."""

    @classmethod
    def of(cls, samples: Sequence[TrainSample], numbers: Sequence[int], aggregation: Aggregation) -> StepSums:
        """Computes the sums of one optimizer step. `numbers` are the samples' numbers in the batch, for error messages.

        Raises TrainError for a sample with arrays of unequal length, and for a pair without one chosen and one rejected
        response.
        """
        for number, sample in zip(numbers, samples, strict=True):
            _check_lengths(number, sample)
        weights = aggregation.weights([sample.loss_mask for sample in samples], [sample.expert for sample in samples])
        pairs = _pairs(samples)
        # Rollouts have no labels, and a look at each of their masks takes a fifth of the time of packing them.
        if all(sample.chosen is None for sample in samples):
            return cls(weights=weights, pairs=pairs, responses=0, chosen=0, observations=aggregation.observations)
        trained = [sample for sample in samples if sample.loss_mask.any()]
        chosen = sum(sample.chosen is True for sample in trained)
        return cls(
            weights=weights,
            pairs=pairs,
            responses=len(trained),
            chosen=chosen,
            observations=aggregation.observations,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """S complete responses of one forward pass, as columns of their N trained tokens, response after response.

    An engine's subclass adds the layout of its rows.
    """

    targets: Ints  # [N], the tokens
    places: Ints  # [N], which token of its response each is
    inverse_temperature: Floats  # [N]
    old_logprobs: Floats  # [N]
    advantages: Floats  # [N]
    weights: TokenWeights[Floats]  # [N] each, of the sums of all samples of the step
    expert: NDArray[np.bool_]  # [N]
    sequence: Ints  # [N], which response of this micro-batch
    sequences: int
    """Number of responses, S."""
    members: Ints  # [S], which sample of the batch each response is
    rewards: Floats  # [S]
    groups: Ints  # [S], index of its group within the batch; -1 without one
    versions: Ints | None  # [N], of the weights that drew the tokens; None if some are not known
    pairs: Ints | None  # [S], which pair each response is of; None if the batch has none
    chosen: NDArray[np.bool_] | None  # [S], which are preferred, or desirable; None: nobody said of them all
    pairs_in_batch: int
    """Number of pairs in the optimizer step."""
    responses_in_batch: int
    """Number of labelled responses in the optimizer step."""
    chosen_in_batch: int
    """Number of preferred or desirable responses in the optimizer step."""

    @classmethod
    def of(cls, samples: Sequence[TrainSample], members: Ints, order: Sequence[int], step: StepSums) -> MicroBatch:
        """Builds the columns of samples of an optimizer step.

        `members` are the samples' numbers in the batch, `order` their numbers among the samples of `step`.
        """
        lengths = np.array([len(sample.loss_mask) for sample in samples], np.int64)
        trained = np.concatenate([sample.loss_mask for sample in samples]) != 0
        sequence = np.repeat(np.arange(len(samples)), lengths)[trained]
        rows = np.array(order, np.int64)[sequence]
        expert = np.array([sample.expert for sample in samples], np.bool_)[sequence]
        if step.observations:
            observed = np.concatenate([sample.loss_mask for sample in samples])[trained] == OBSERVED
            # The rows of observed tokens lie behind those of the model's own: see Aggregation.weights.
            rows = rows + observed * (len(step.weights.whole) // 2)
            expert = expert | observed
        responses = np.concatenate([sample.tokens[sample.prompt_tokens :] for sample in samples])
        return MicroBatch(
            targets=responses[trained].astype(np.int64),
            places=ranges(np.zeros_like(lengths), lengths)[trained],
            inverse_temperature=_inverse_temperature(samples, trained),
            old_logprobs=_trained(samples, [sample.logprobs for sample in samples], trained),
            advantages=_trained(samples, [sample.advantages for sample in samples], trained),
            weights=step.weights.map(lambda column: column[rows].astype(np.float32)),
            expert=expert,
            sequence=sequence,
            sequences=len(samples),
            members=members,
            rewards=np.array([sample.reward for sample in samples], np.float32),
            groups=np.array([sample.group for sample in samples], np.int64),
            versions=_versions(samples, trained),
            pairs=np.unique([sample.pair for sample in samples], return_inverse=True)[1] if step.pairs else None,
            chosen=_chosen(samples),
            pairs_in_batch=step.pairs,
            responses_in_batch=step.responses,
            chosen_in_batch=step.chosen,
        )

    def columns(self) -> dict[str, Any]:
        """Returns the columns by name, as arguments for an engine's subclass."""
        return {column.name: getattr(self, column.name) for column in fields(MicroBatch)}

    def counts(self) -> Ints:
        """Returns the number of trained tokens of each response  # [S]"""
        return np.bincount(self.sequence, minlength=self.sequences)


def ranges(starts: Ints, counts: Ints) -> Ints:
    """Returns the concatenated ranges start, start + 1, ..., each of its count of numbers  # [R], [R] -> [sum of
    counts]
    """
    before = np.cumsum(counts) - counts
    numbers: Ints = np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
    return numbers


def _check_lengths(number: int, sample: TrainSample) -> None:
    """Raises TrainError if the arrays of a sample have unequal lengths."""
    response = len(sample.tokens) - sample.prompt_tokens
    lengths = {len(sample.loss_mask)}
    for column in (sample.logprobs, sample.advantages, sample.versions, sample.temperatures):
        if column is not None:
            lengths.add(len(column))
    if sample.prompt_tokens < 1 or response < 1 or lengths != {response}:
        raise TrainError(
            f"item {number} has {len(sample.tokens)} tokens, {sample.prompt_tokens} of them the prompt, and arrays of "
            f"length {sorted(lengths)} for its response",
            fix="a prompt and a response have at least one token each, and each array covers the response",
        )


def _pairs(samples: Sequence[TrainSample]) -> int:
    """Returns the number of pairs with trained tokens; 0 for a batch without pairs. Raises TrainError for an incomplete
    pair.
    """
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


def _chosen(samples: Sequence[TrainSample]) -> NDArray[np.bool_] | None:
    """Returns True for preferred or desirable responses; None if any response has no label  # [S]"""
    labels = [sample.chosen for sample in samples]
    # Labels of some responses alone would train the others as undesirable ones.
    return None if None in labels else np.array(labels, np.bool_)


def _inverse_temperature(samples: Sequence[TrainSample], trained: NDArray[np.bool_]) -> Floats:
    """Returns the inverse of the temperature at which each trained token was drawn  # [N]

    Greedy responses carry log-probabilities at temperature 1.
    """
    parts = [
        np.ones(len(sample.loss_mask)) if sample.temperatures is None else sample.temperatures for sample in samples
    ]
    temperatures = np.concatenate(parts)[trained]
    inverse: Floats = (1.0 / np.where(temperatures > 0, temperatures, 1.0)).astype(np.float32)
    return inverse


def _versions(samples: Sequence[TrainSample], trained: NDArray[np.bool_]) -> Ints | None:
    """Returns the versions of the trained tokens; None if a rollout's are unknown  # [N]"""
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
    """Returns the values of trained tokens, zeros for samples without values  # [N]"""
    columns = [
        np.zeros(len(sample.loss_mask), np.float32) if column is None else column
        for sample, column in zip(samples, parts, strict=True)
    ]
    values: Floats = np.concatenate(columns)[trained].astype(np.float32)
    return values
