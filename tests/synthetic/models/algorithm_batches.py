"""Every algorithm with its own defaults, and a batch of random responses of the kind that it takes."""

from __future__ import annotations

import numpy as np

from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import AlgorithmSpec
from rftd.workers.learning.algorithms.advantages import ClosedGroup, advantages_of
from rftd.workers.learning.algorithms.registry import lookup
from rftd.workers.learning.engine import TrainSample


def make_algorithm(name: str) -> AlgorithmSpec:
    found = lookup(name)
    return AlgorithmSpec(
        kind=name,
        advantage=found.advantage,
        advantage_args=found.advantage_args,
        policy_loss=found.policy_loss,
        policy_loss_args=found.policy_loss_args,
        kl_loss=found.kl_loss,
        kl_loss_args=found.kl_loss_args,
        entropy_loss=found.entropy_loss,
        entropy_loss_args=found.entropy_loss_args,
        loss_agg_mode=found.loss_agg_mode,
        optimizer=Optimizer(optimizer_type="sgd", lr=1.0, weight_decay=0.0, clip_grad=0.0),
    )


def make_samples(
    name: str, *, groups: int = 3, members: int = 4, drift: float = 0.2, rewards: str = "random"
) -> list[TrainSample]:
    rng = np.random.default_rng(11)
    algorithm = make_algorithm(name)
    paired = lookup(name).rows == "dpo"
    samples = []
    for group in range(groups):
        prompt = rng.integers(7, 120, 5 + group)
        scores = np.ones(members) if rewards == "equal" else rng.random(members)
        advantages = advantages_of(algorithm, [ClosedGroup(rewards=scores.astype(np.float32))])[0]
        for member in range(members):
            length = int(rng.integers(2, 8))
            mask = np.ones(length, np.uint8)
            mask[length // 2] = 0
            samples.append(
                TrainSample(
                    tokens=np.concatenate([prompt, rng.integers(7, 120, length)]).astype(np.uint32),
                    prompt_tokens=len(prompt),
                    loss_mask=mask,
                    logprobs=rng.normal(-4.85, drift, length).astype(np.float32),
                    advantages=np.full(length, advantages[member], np.float32),
                    reward=float(scores[member]),
                    group=group,
                    pair=len(samples) // 2 if paired else -1,
                    chosen=paired and len(samples) % 2 == 0,
                )
            )
    return samples
