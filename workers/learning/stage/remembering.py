"""`relative_batch`: a batch with advantages relative to the baselines remembered from earlier batches."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from rftd.workers.learning.algorithms.advantages.advantage import Remembering
from rftd.workers.learning.engine import TrainBatch


def relative_batch(
    function: Remembering, batch: TrainBatch, remembered: Mapping[str, float]
) -> tuple[TrainBatch, dict[str, float]]:
    """Returns the batch with the advantages of `function` in its rollouts, and the numbers for the next batch.

    Rows of a dataset, and sequences without a trained token (an agent whose prompt was cut), neither get an advantage
    nor move a baseline.
    """
    numbers = [
        number for number, sample in enumerate(batch.samples) if not sample.expert and bool(sample.loss_mask.any())
    ]
    rollouts = [batch.samples[number] for number in numbers]
    advantages, after = function.relative(
        [sample.role for sample in rollouts], [sample.reward for sample in rollouts], remembered
    )
    samples = list(batch.samples)
    for number, sample, advantage in zip(numbers, rollouts, advantages, strict=True):
        samples[number] = msgspec.structs.replace(
            sample, advantages=np.full(len(sample.loss_mask), advantage, np.float32)
        )
    return msgspec.structs.replace(batch, samples=samples), after
