"""Checks that a batch can be trained at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rftd.ops.errors import TrainError
from rftd.workers.training.engine import TrainBatch, TrainSample


def check_tokens(batch: TrainBatch, vocabulary_tokens: int) -> None:
    """Returns if the model knows every token. Raises TrainError with the first that it does not know."""
    if _max_token(batch.samples) < vocabulary_tokens:
        return
    for number, sample in enumerate(batch.samples):
        if len(sample.tokens) and int(sample.tokens.max()) >= vocabulary_tokens:
            raise TrainError(
                f"item {number} of step {batch.step} has token {int(sample.tokens.max())}; "
                f"the model knows {vocabulary_tokens}",
                fix="train with the tokenizer that made the experiences",
            )


def check_logprobs(batch: TrainBatch) -> None:
    """Returns if every response has the log-probabilities of its rollout, or is an expert's. Raises TrainError."""
    for number, sample in enumerate(batch.samples):
        if sample.logprobs is None and not sample.expert:
            raise TrainError(
                f"item {number} of step {batch.step} carries no log-probabilities of its rollout",
                fix="train dataset rows with an algorithm made for them, such as sft",
            )


def _max_token(samples: Sequence[TrainSample]) -> int:
    """The largest id of the batch; -1 without any."""
    return int(np.concatenate([sample.tokens for sample in samples]).max(initial=0)) if samples else -1
