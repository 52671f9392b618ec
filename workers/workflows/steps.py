"""Several steps of one rollout, each with a prompt of its own, as one result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from rftd.streams.events.experience import RunStep, Span
from rftd.workers.workflows.result import RolloutResult


def joined(results: Sequence[RolloutResult]) -> RolloutResult:
    """The steps of a rollout in their order, as one: its reward, priority, metrics and end are those of the last."""
    if len(results) == 1 and results[0].step_reward is None and not results[0].state:
        return results[0]
    return msgspec.structs.replace(
        results[-1],
        tokens=np.concatenate([each.tokens for each in results]),
        prompt_tokens=sum(each.prompt_tokens for each in results),
        loss_mask=np.concatenate([each.loss_mask for each in results]),
        logprobs=np.concatenate([each.logprobs for each in results]),
        spans=tuple(_spans(results)),
        steps=tuple(
            RunStep(len(each.tokens), each.prompt_tokens, each.reward, each.step_reward, each.state) for each in results
        ),
    )


def _spans(results: Sequence[RolloutResult]) -> Iterator[Span]:
    place = 0
    for each in results:
        for span in each.spans:
            yield Span(span.version, span.generation, place + span.start, place + span.end)
        place += len(each.loss_mask)
