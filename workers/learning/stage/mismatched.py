"""The distance of a policy from its reference, by responses to prompts that they do not answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.stage.learner import Learner, M


def mismatched(samples: Sequence[TrainSample], max_tokens: int) -> list[TrainSample]:
    """The responses, each after another prompt of the batch, which does not depend on the order of the samples.

    A response is cut where it would go beyond `max_tokens`. Empty if all answer one prompt.
    """
    # Sorted, then each takes its neighbour's: no prompt gets its own, and no generator of random numbers is needed.
    prompts = sorted({_prompt(sample) for sample in samples})
    if len(prompts) < 2:
        return []
    other = {prompt: prompts[number - 1] for number, prompt in enumerate(prompts)}
    found = []
    for sample in samples:
        prompt = np.frombuffer(other[_prompt(sample)], sample.tokens.dtype)
        mask = sample.loss_mask[: max(0, max_tokens - len(prompt))]
        if mask.any():
            response = sample.tokens[sample.prompt_tokens :][: len(mask)]
            found.append(
                TrainSample(
                    tokens=np.concatenate([prompt, response]),
                    prompt_tokens=len(prompt),
                    loss_mask=mask,
                    temperatures=None if sample.temperatures is None else sample.temperatures[: len(mask)],
                )
            )
    return found


@torch.no_grad()
def reference_kl(learner: Learner[M], packed: Sequence[M]) -> Tensor:
    """The larger of 0 and the mean over mismatched responses of the sum of logprob - reference logprob  # []"""
    total = torch.zeros((), device=learner.device)
    for found in learner.values(packed, frozenset({"logprobs", "ref_logprobs"})):
        assert found.logprobs is not None and found.ref_logprobs is not None
        total += found.logprobs.sum()
        total -= found.ref_logprobs.sum()
    return (total / max(1, sum(micro.sequences for micro in packed))).clamp(min=0)


def _prompt(sample: TrainSample) -> bytes:
    return sample.tokens[: sample.prompt_tokens].tobytes()
