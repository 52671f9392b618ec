"""`Updates`: the optimizer steps of one batch, each as micro-batches.

An epoch goes once over the batch in mini-batches of whole items. Each mini-batch is one optimizer step, aggregated
by itself as in verl: weights add up like those of a whole batch.
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
    """The mini-batches of a batch in the order of training."""

    policy: list[list[M]]
    critic: list[list[M]]
    """The critic's mini-batches; empty without a critic."""
    epochs: int
    """The policy's epochs."""
    mismatched: list[M]
    """The batch's responses after prompts that they do not answer, if the loss asks for the KL of those."""

    @classmethod
    def of(
        cls, batch: TrainBatch, spec: StageSpec, objective: Objective, learner: Learner[M], *, seed: int
    ) -> Updates[M]:
        """Has the batch packed.

        Raises TrainError for a sample whose arrays do not fit together, and for rollouts of several steps where a KL
        penalty is taken from the rewards of whole responses.
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
        """True if a step is followed by another one, of the policy or of the critic."""
        return max(len(self.policy), len(self.critic)) > 1

    @property
    def first_epoch(self) -> list[M]:
        """The micro-batches of the first epoch, which hold each sample of the batch once."""
        return [micro for mini in self.policy[: len(self.policy) // self.epochs] for micro in mini]

    @property
    def tokens(self) -> int:
        """The number of trained tokens of the batch, each counted once."""
        return sum(len(micro.targets) for micro in self.first_epoch)

    @property
    def micro_batches(self) -> int:
        """The number of forward passes of the policy that carry a gradient."""
        return sum(len(mini) for mini in self.policy)


def mini_batches(batch: TrainBatch, spec: UpdatesSpec, *, seed: int) -> list[tuple[int, ...]]:
    """The numbers of the samples of each optimizer step, ascending; a function of the batch, the seed and the step."""
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
    """A permutation of the first `count` numbers, constant over releases of any random generator."""
    # By hashes of names, not by a generator: numpy promises no stream of numbers across its releases.
    return sorted(range(count), key=lambda number: xxhash.xxh3_64_intdigest(f"{seed}/{number}".encode()))


def _items(batch: TrainBatch) -> list[range]:
    """The numbers of each item's samples."""
    sizes = batch.items or _sizes(batch.samples)
    return [range(start, end) for start, end in pairwise(accumulate(sizes, initial=0))]


def _sizes(samples: Sequence[TrainSample]) -> list[int]:
    """The number of samples of each item: one, or two consecutive ones for a pair."""
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
    """Raises TrainError with the first token unknown to the model."""
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
    """The largest id of the batch; -1 without any."""
    return int(np.concatenate([sample.tokens for sample in samples]).max(initial=0)) if samples else -1


def check_logprobs(batch: TrainBatch) -> None:
    """Returns if every response has the log-probabilities of its rollout, or is an expert's. Raises TrainError."""
    for number, sample in enumerate(batch.samples):
        if sample.logprobs is None and not sample.expert:
            raise TrainError(
                f"item {number} of step {batch.step} carries no log-probabilities of its rollout",
                fix="train dataset rows with an algorithm made for them, such as sft",
            )
