"""The steps of an experience as separate sequences of tokens, masks and log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rftd.streams.events.experience import ExperienceProduced, RunStep


@dataclass(frozen=True, slots=True)
class StepArrays:
    """The arrays of one sequence: T tokens, the first P of them the prompt; R = T - P."""

    step: RunStep
    """Lengths and rewards of the step, as recorded."""
    tokens: NDArray[np.uint32]  # [T]
    """Prompt and response."""
    loss_mask: NDArray[np.uint8]  # [R]
    """1 for each trained token of the response, 0 for others."""
    logprobs: NDArray[np.float32]  # [R]
    """Log-probability of each token of the response."""

    @property
    def mean_logprob(self) -> float:
        """Returns the mean log-probability over the trained tokens; 0 without any."""
        trained = self.logprobs[self.loss_mask != 0]
        return float(trained.mean(dtype=np.float64)) if len(trained) else 0.0


def whole_run(event: ExperienceProduced) -> StepArrays:
    """Returns the experience as a single sequence of prompt and response, ignoring its division into steps."""
    step = RunStep(len(event.tokens), event.prompt_tokens, event.reward)
    return StepArrays(step, event.tokens.view(), event.loss_mask.view(), event.logprobs.view())


def steps_of(event: ExperienceProduced) -> Iterator[StepArrays]:
    """Yields each step of an experience as a sequence; for an experience without steps, its single sequence."""
    whole = whole_run(event)
    # Tokens of all steps lie in one array, masks and log-probabilities of responses in others: two running offsets.
    offset = response_offset = 0
    for step in event.steps or (whole.step,):
        end = offset + step.tokens
        next_response = response_offset + step.tokens - step.prompt_tokens
        yield StepArrays(
            step,
            whole.tokens[offset:end],
            whole.loss_mask[response_offset:next_response],
            whole.logprobs[response_offset:next_response],
        )
        offset = end
        response_offset = next_response
