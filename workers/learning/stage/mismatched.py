"""The KL of a policy to its reference, estimated by responses placed after prompts of other samples (KTO)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.stage.learner import Learner, M


def mismatched(samples: Sequence[TrainSample], max_tokens: int) -> list[TrainSample]:
    """Returns the responses, each after the prompt of another sample; the pairing does not depend on the order of the
    samples.

    Responses are truncated at `max_tokens` including the prompt. Empty for a batch with a single distinct prompt.
    """
    # Sorted, then each takes its neighbour's: no prompt gets its own, and no generator of random numbers is needed.
    prompts = sorted({_prompt(sample) for sample in samples})
    if len(prompts) < 2:
        return []
    neighbours = {prompt: prompts[number - 1] for number, prompt in enumerate(prompts)}
    answers = []
    for sample in samples:
        prompt = np.frombuffer(neighbours[_prompt(sample)], sample.tokens.dtype)
        mask = sample.loss_mask[: max(0, max_tokens - len(prompt))]
        if mask.any():
            response = sample.tokens[sample.prompt_tokens :][: len(mask)]
            answers.append(
                TrainSample(
                    tokens=np.concatenate([prompt, response]),
                    prompt_tokens=len(prompt),
                    loss_mask=mask,
                    temperatures=None if sample.temperatures is None else sample.temperatures[: len(mask)],
                )
            )
    return answers


@torch.no_grad()
def reference_kl(learner: Learner[M], packed: Sequence[M]) -> Tensor:
    """Returns the mean, over packed mismatched responses, of the sum of logprob - reference logprob; at least 0
    # []
    """
    total = torch.zeros((), device=learner.device)
    for values in learner.values(packed, frozenset({"logprobs", "ref_logprobs"})):
        assert values.logprobs is not None and values.ref_logprobs is not None
        total += values.logprobs.sum()
        total -= values.ref_logprobs.sum()
    return (total / max(1, sum(micro.sequences for micro in packed))).clamp(min=0)


def _prompt(sample: TrainSample) -> bytes:
    """Returns the tokens of a prompt as bytes, for comparison."""
    return sample.tokens[: sample.prompt_tokens].tobytes()
