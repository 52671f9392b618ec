"""The steps of an experience as sequences of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rftd.streams.events.experience import ExperienceProduced, RunStep


@dataclass(frozen=True, slots=True)
class StepArrays:
    """The arrays of one sequence: T tokens, of which the first P are the prompt; R = T - P."""

    step: RunStep
    tokens: NDArray[np.uint32]  # [T]
    loss_mask: NDArray[np.uint8]  # [R]
    logprobs: NDArray[np.float32]  # [R]

    @property
    def mean_logprob(self) -> float:
        """The mean log-probability over the trained tokens; 0 if there is none."""
        trained = self.logprobs[self.loss_mask != 0]
        return float(trained.mean(dtype=np.float64)) if len(trained) else 0.0


def whole_run(event: ExperienceProduced) -> StepArrays:
    """The experience as one sequence, whatever its steps."""
    step = RunStep(len(event.tokens), event.prompt_tokens, event.reward)
    return StepArrays(step, event.tokens.view(), event.loss_mask.view(), event.logprobs.view())


def steps_of(event: ExperienceProduced) -> Iterator[StepArrays]:
    """The steps in turn; of an experience that is one sequence, that sequence."""
    whole = whole_run(event)
    # Tokens of all steps lie in one array, masks and log-probabilities of their responses in others: two running
    # places.
    place = response = 0
    for step in event.steps or (whole.step,):
        end = place + step.tokens
        next_response = response + step.tokens - step.prompt_tokens
        yield StepArrays(
            step,
            whole.tokens[place:end],
            whole.loss_mask[response:next_response],
            whole.logprobs[response:next_response],
        )
        place = end
        response = next_response
