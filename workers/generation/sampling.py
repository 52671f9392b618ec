"""Checks of sampling settings: valid for drawing a response, and trainable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rftd.ops.errors import RolloutError
from rftd.streams.log.bounds import HOTTEST
from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.generation.engine import Sampling

COLDEST_TRAINED: Final = 0.01
"""Lowest temperature for training: smaller divisors of the logits leave too few digits for ratios in single precision.
"""
HIGHEST_PENALTY: Final = 10.0
"""Largest repetition penalty, and largest size of a presence penalty of either sign."""
HIGHEST_BIAS: Final = 100.0
"""Largest bias: decides for or against a token, whatever the model's logits are."""
TRAINED_FIX: Final = f"use a temperature from {COLDEST_TRAINED} to {HOTTEST:g}"
"""Fix for a temperature that cannot be trained."""


def trainable(temperature: float) -> bool:
    """True for a temperature at which responses can be trained: not 0 (greedy), and not too low for single
    precision.
    """
    return COLDEST_TRAINED <= temperature <= HOTTEST


def check_sampling(sampling: SamplingSpec) -> None:
    """Raises RolloutError, naming the setting and its value, for a setting unusable for drawing a response."""
    for field, number, fix in _wrong(sampling):
        raise RolloutError(f"a response was requested with {field} {number}", field=field, fix=fix)


def _wrong(sampling: SamplingSpec) -> Iterator[tuple[str, float, str]]:
    """Yields name, value and fix of each invalid setting. The comparisons are written so that NaN fails them."""
    if not 0 <= sampling.temperature <= HOTTEST:
        yield "temperature", sampling.temperature, f"{TRAINED_FIX}, or 0 for greedy text that is not trained"
    if not 0 < sampling.top_p <= 1:
        yield "top_p", sampling.top_p, "use a share above 0; 1 keeps every token"
    if not sampling.top_k >= -1:
        yield "top_k", sampling.top_k, "use the number of likeliest tokens to keep; -1 keeps every token"
    if not 0 <= sampling.min_p <= 1:
        yield "min_p", sampling.min_p, "use a share of the likeliest token's probability; 0 keeps every token"
    if not 0 < sampling.repetition_penalty <= HIGHEST_PENALTY:
        fix = f"use a factor above 0, at most {HIGHEST_PENALTY:g}; 1 has no effect"
        yield "repetition_penalty", sampling.repetition_penalty, fix
    if not abs(sampling.presence_penalty) <= HIGHEST_PENALTY:
        fix = f"use a number from -{HIGHEST_PENALTY:g} to {HIGHEST_PENALTY:g}; 0 has no effect"
        yield "presence_penalty", sampling.presence_penalty, fix
    for token, bias in sampling.logit_bias:
        if token < 0 or not abs(bias) <= HIGHEST_BIAS:
            fix = f"name token ids from 0 on, with numbers from -{HIGHEST_BIAS:g} to {HIGHEST_BIAS:g}"
            yield f"logit_bias of token {token}", bias, fix


def other_settings(sampling: Sampling | SamplingSpec) -> Iterator[tuple[str, float]]:
    """Yields the settings with unusual values, other than temperature, top_p and top_k, by name."""
    if sampling.min_p > 0:
        yield "min_p", sampling.min_p
    if sampling.repetition_penalty != 1:
        yield "repetition_penalty", sampling.repetition_penalty
    if sampling.presence_penalty:
        yield "presence_penalty", sampling.presence_penalty
    for token, bias in sampling.logit_bias:
        yield f"logit_bias/{token}", bias
    if isinstance(sampling, Sampling) and sampling.json_schema:
        yield "json_schema", 1.0


def unlike_the_policy(sampling: SamplingSpec) -> list[str]:
    """Returns the settings (with values) that make the sampled distribution differ from the policy at its
    temperature.
    """
    settings = [("top_p", sampling.top_p)] if sampling.top_p < 1 else []
    settings += [("top_k", float(sampling.top_k))] if sampling.top_k > 0 else []
    return [f"{name} {number:g}" for name, number in (*settings, *other_settings(sampling))]
