"""An experience as samples of a batch: one for each of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rftd.streams.events.experience import ExperienceProduced, SamplingSpan, Span
from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.losses.aggregation import OBSERVED
from rftd.workers.training.run_steps import steps_of


class Constants:
    """Cache of read-only constant arrays for one batch, because versions and advantages repeat."""

    def __init__(self) -> None:
        """Begins with an empty cache."""
        self._arrays: dict[tuple[float, int, DTypeLike], NDArray[Any]] = {}

    def of(self, number: float, length: int, dtype: DTypeLike) -> NDArray[Any]:
        """Returns an array of `length` times the number; read-only, because samples share it."""
        key = (number, length, dtype)
        constant = self._arrays.get(key)
        if constant is None:
            constant = self._arrays[key] = np.full(length, number, dtype)
            # Samples share the array: a write to one sample must fail, and not change all the others.
            constant.setflags(write=False)
        return constant


def run_samples(
    event: ExperienceProduced,
    advantages: Sequence[float],
    default_temperature: float,
    constants: Constants,
    *,
    group: int,
    staleness_versions: int,
    trained: bool,
    observations: bool = False,
) -> Sequence[TrainSample]:
    """Returns the samples of an experience, one for each of its steps, with the advantage of the step or one for all.

    `default_temperature` applies to tokens without a recorded temperature; `group` is the index of the batch's closed
    group; `trained` is False for an experience outside the loss; with `observations`, tokens of the environment are
    trained too.
    """
    length = len(event.loss_mask)
    temperatures = temperatures_of(event.sampling, length, default_temperature, constants)
    versions = versions_of(event.spans, length, constants)
    loss_mask = event.loss_mask.view()
    if observations:
        loss_mask, temperatures = observed(loss_mask, event.logprobs.view(), temperatures)
    if not event.steps:
        return (
            TrainSample(
                tokens=event.tokens.view(),
                prompt_tokens=event.prompt_tokens,
                # Zeros in its place, not fewer samples: a planned experience stays in the batch.
                loss_mask=loss_mask if trained else constants.of(0, length, np.uint8),
                logprobs=event.logprobs.view(),
                advantages=constants.of(advantages[0], length, np.float32),
                versions=versions,
                reward=event.reward,
                group=group,
                temperatures=temperatures,
                staleness_versions=staleness_versions,
            ),
        )
    samples = []
    offset = 0
    for number, arrays in enumerate(steps_of(event)):
        length = len(arrays.loss_mask)
        samples.append(
            TrainSample(
                tokens=arrays.tokens,
                prompt_tokens=arrays.step.prompt_tokens,
                loss_mask=loss_mask[offset : offset + length] if trained else constants.of(0, length, np.uint8),
                logprobs=arrays.logprobs,
                advantages=constants.of(advantages[number if len(advantages) > 1 else 0], length, np.float32),
                versions=None if versions is None else versions[offset : offset + length],
                reward=arrays.step.reward,
                role=arrays.step.role,
                group=group,
                temperatures=temperatures[offset : offset + length],
                staleness_versions=staleness_versions,
            )
        )
        offset += length
    return samples


def observed(
    loss_mask: NDArray[np.uint8], logprobs: NDArray[np.float32], temperatures: NDArray[np.float64]
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Returns mask and temperatures with the environment's tokens marked as observed, at temperature 1  # [R], [R]

    A masked token without a log-probability was drawn by nobody; a masked token with one is the model's own.
    """
    of_environment = (loss_mask == 0) & (logprobs == 0)
    if not of_environment.any():
        return loss_mask, temperatures
    return (
        np.where(of_environment, np.uint8(OBSERVED), loss_mask),
        np.where(of_environment, 1.0, temperatures),
    )


def versions_of(spans: Sequence[Span], length: int, constants: Constants) -> NDArray[np.int64] | None:
    """Returns the weight version that sampled each response token; a token outside all spans was not sampled  # [R]"""
    if not spans:
        return None
    versions = constants.of(spans[0].version, length, np.int64)
    if len(spans) > 1:
        # The shared array is read-only; a response of several weight versions needs a copy.
        versions = versions.copy()
        for span in spans[1:]:
            versions[span.start : span.end] = span.version
    return versions


def temperatures_of(
    sampling: Sequence[SamplingSpan], length: int, default: float, constants: Constants
) -> NDArray[np.float64]:
    """Returns the sampling temperature of each response token; `default` for a token outside all spans  # [R]"""
    if len(sampling) == 1 and (sampling[0].start, sampling[0].end) == (0, length):
        return constants.of(sampling[0].temperature, length, np.float64)
    temperatures = constants.of(default, length, np.float64)
    if sampling:
        temperatures = temperatures.copy()
        for span in sampling:
            temperatures[span.start : span.end] = span.temperature
    return temperatures
