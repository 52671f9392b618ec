"""`Updates`: the optimizer steps of one batch, each a list of micro-batches.

An epoch trains the complete batch once, in mini-batches of complete items. Each mini-batch is one optimizer step and is
aggregated separately, as in verl: its token weights add up as those of a complete batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Generic

import numpy as np
import xxhash

from rftd.ops.errors import TrainError
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_parts import UpdatesSpec
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.losses.policy_loss import LossNeeds
from rftd.workers.learning.stage.learner import Learner, M
from rftd.workers.learning.stage.mismatched import mismatched


@dataclass(frozen=True, slots=True)
class Updates(Generic[M]):
    """The mini-batches of a batch in the order of training, each a list of packed micro-batches."""

    policy: list[list[M]]
    """The policy's mini-batches, over all epochs."""
    critic: list[list[M]]
    """The critic's mini-batches, over all epochs; empty without a critic."""
    epochs: int
    """Number of times the policy is trained on the batch."""
    mismatched: list[M]
    """The batch's responses after prompts of other samples, if the loss needs their KL to the reference (KTO); else
    empty.
    """

    @classmethod
    def of(
        cls, batch: TrainBatch, spec: StageSpec, objective: Objective, learner: Learner[M], *, seed: int
    ) -> Updates[M]:
        """Divides a batch into mini-batches and lets the engine pack each into micro-batches; `seed` is the
        experiment's, for shuffling.

        Raises TrainError for a sample with arrays of unequal length, and for rollouts of several steps if the KL
        penalty is subtracted from rewards of responses.
        """
        if objective.penalised_advantage is not None and any(count > 1 for count in batch.items):
            raise TrainError(
                f"step {batch.step} has a rollout of several steps, and the KL penalty is taken from whole responses",
                fix="set algorithm.kl_penalty_place to after",
            )
        trainer = spec.trainer
        # By members: policy and critic, and epochs without shuffling, have the same mini-batches, and packing one takes
        # time.
        packed: dict[tuple[int, ...], list[M]] = {}
        others: Sequence[TrainSample] = ()
        if LossNeeds.of(objective.policy_loss).reference_kl:
            others = mismatched(batch.samples, spec.model.max_model_len)

        def packed_for(updates: UpdatesSpec) -> list[list[M]]:
            steps = []
            for numbers in mini_batches(batch, updates, seed=seed):
                if numbers not in packed:
                    packed[numbers] = learner.pack(batch.samples, numbers, objective.aggregation)
                steps.append(packed[numbers])
            return steps

        return cls(
            policy=packed_for(trainer.updates),
            critic=packed_for(trainer.critic_updates or trainer.updates) if learner.critic is not None else [],
            epochs=trainer.updates.epochs,
            mismatched=learner.pack(others, range(len(others)), objective.aggregation) if others else [],
        )

    @property
    def several(self) -> bool:
        """True if policy or critic take more than one optimizer step on the batch."""
        return max(len(self.policy), len(self.critic)) > 1

    @property
    def first_epoch(self) -> list[M]:
        """The micro-batches of the policy's first epoch: each sample of the batch exactly once."""
        return [micro for mini in self.policy[: len(self.policy) // self.epochs] for micro in mini]

    @property
    def tokens(self) -> int:
        """Number of trained tokens of the batch, each counted once."""
        return sum(len(micro.targets) for micro in self.first_epoch)

    @property
    def micro_batches(self) -> int:
        """Number of the policy's micro-batches over all epochs, each one forward and backward pass."""
        return sum(len(mini) for mini in self.policy)


def mini_batches(batch: TrainBatch, spec: UpdatesSpec, *, seed: int) -> list[tuple[int, ...]]:
    """Returns the sample numbers of each optimizer step, ascending; determined by the batch, the seed and the step."""
    items = _items(batch)
    size = spec.mini_batch_items or max(1, len(items))
    steps = []
    for epoch in range(spec.epochs):
        order: Sequence[int] = range(len(items))
        if spec.shuffle:
            order = _drawn(len(items), f"{seed}/{batch.step}/{epoch}")
        # max(1, ...): an empty batch is one empty step, whose version counts.
        for start in range(0, max(1, len(items)), size):
            # Ascending: shuffling decides which items share a step, and nothing else.
            chosen = sorted(order[start : start + size])
            steps.append(tuple(number for number_of_item in chosen for number in items[number_of_item]))
    return steps


def _drawn(count: int, seed: str) -> list[int]:
    """Returns a permutation of the first `count` numbers, equal in all releases of any random generator."""
    # By hashes of names, not by a generator: numpy promises no stream of numbers across its releases.
    return sorted(range(count), key=lambda number: xxhash.xxh3_64_intdigest(f"{seed}/{number}".encode()))


def _items(batch: TrainBatch) -> list[range]:
    """Returns the sample numbers of each item of the plan."""
    sizes = batch.items or _sizes(batch.samples)
    return [range(start, end) for start, end in pairwise(accumulate(sizes, initial=0))]


def _sizes(samples: Sequence[TrainSample]) -> list[int]:
    """Returns the number of samples of each item: one, or two consecutive ones for a pair."""
    sizes: list[int] = []
    before = -1
    for sample in samples:
        if sample.pair >= 0 and sample.pair == before:
            sizes[-1] += 1
        else:
            sizes.append(1)
        before = sample.pair
    return sizes


def check_tokens(batch: TrainBatch, vocabulary_tokens: int) -> None:
    """Raises TrainError for a token id beyond the model's vocabulary."""
    # Checked on the host: an id beyond the embeddings is undefined on a GPU, and ends the process's CUDA context.
    if _max_token(batch.samples) < vocabulary_tokens:
        return
    for number, sample in enumerate(batch.samples):
        if len(sample.tokens) and int(sample.tokens.max()) >= vocabulary_tokens:
            raise TrainError(
                f"item {number} of step {batch.step} has token {int(sample.tokens.max())}; "
                f"the model knows {vocabulary_tokens}",
                fix="train with the tokenizer that made the experiences",
            )


def _max_token(samples: Sequence[TrainSample]) -> int:
    """Returns the largest token id of the samples; -1 without samples."""
    return int(np.concatenate([sample.tokens for sample in samples]).max(initial=0)) if samples else -1


def check_logprobs(batch: TrainBatch) -> None:
    """Raises TrainError for a response without log-probabilities of its rollout, unless it is an expert's."""
    for number, sample in enumerate(batch.samples):
        if sample.logprobs is None and not sample.expert:
            raise TrainError(
                f"item {number} of step {batch.step} carries no log-probabilities of its rollout",
                fix="train dataset rows with an algorithm made for them, such as sft",
            )
