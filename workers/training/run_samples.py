"""An experience as samples of a batch: one for each of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rftd.streams.events.experience import ExperienceProduced, SamplingSpan, Span
from rftd.workers.learning.engine import TrainSample
from rftd.workers.training.run_steps import steps_of


class Constants:
    """Arrays of one value, each made once for a batch: versions and advantages repeat each other. Read-only."""

    def __init__(self) -> None:
        self._made: dict[tuple[float, int, DTypeLike], NDArray[Any]] = {}

    def of(self, value: float, length: int, dtype: DTypeLike) -> NDArray[Any]:
        """An array of `length` times the value; read-only, for others share it."""
        key = (value, length, dtype)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = np.full(length, value, dtype)
            # Samples share it: whoever writes to one sample must fail, and not change all the others.
            found.setflags(write=False)
        return found


def run_samples(
    event: ExperienceProduced,
    advantages: Sequence[float],
    usual_temperature: float,
    constants: Constants,
    *,
    group: int,
    staleness_versions: int,
    trained: bool,
) -> Sequence[TrainSample]:
    """The samples of an experience, one for each of its steps; the advantage is the step's, or that of all of them.

    `usual_temperature` is that of tokens whose own is not recorded; `group` the index of the batch's closed group.
    """
    length = len(event.loss_mask)
    temperatures = temperatures_of(event.sampling, length, usual_temperature, constants)
    versions = versions_of(event.spans, length, constants)
    if not event.steps:
        return (
            TrainSample(
                tokens=event.tokens.view(),
                prompt_tokens=event.prompt_tokens,
                # Zeros in its place, not fewer samples: an item of the plan stays an item of the batch.
                loss_mask=event.loss_mask.view() if trained else constants.of(0, length, np.uint8),
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
    place = 0
    for number, part in enumerate(steps_of(event)):
        length = len(part.loss_mask)
        samples.append(
            TrainSample(
                tokens=part.tokens,
                prompt_tokens=part.step.prompt_tokens,
                loss_mask=part.loss_mask if trained else constants.of(0, length, np.uint8),
                logprobs=part.logprobs,
                advantages=constants.of(advantages[number if len(advantages) > 1 else 0], length, np.float32),
                versions=None if versions is None else versions[place : place + length],
                reward=part.step.reward,
                group=group,
                temperatures=temperatures[place : place + length],
                staleness_versions=staleness_versions,
            )
        )
        place += length
    return samples


def versions_of(spans: Sequence[Span], length: int, constants: Constants) -> NDArray[np.int64] | None:
    """The version of the weights that drew each response token; what no span covers was not drawn  # [R]"""
    if not spans:
        return None
    versions = constants.of(spans[0].version, length, np.int64)
    if len(spans) > 1:
        # The shared array is read-only; a response of several weight versions needs one of its own.
        versions = versions.copy()
        for span in spans[1:]:
            versions[span.start : span.end] = span.version
    return versions


def temperatures_of(
    sampling: Sequence[SamplingSpan], length: int, usual: float, constants: Constants
) -> NDArray[np.float64]:
    """The temperature at which each response token was drawn; `usual` for a token of no span  # [R]"""
    if len(sampling) == 1 and (sampling[0].start, sampling[0].end) == (0, length):
        return constants.of(sampling[0].temperature, length, np.float64)
    temperatures = constants.of(usual, length, np.float64)
    if sampling:
        temperatures = temperatures.copy()
        for span in sampling:
            temperatures[span.start : span.end] = span.temperature
    return temperatures
