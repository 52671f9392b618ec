"""The settings with which a response can be drawn: each bound belongs to what is allowed, and NaN to nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rftd.ops.errors import RolloutError
from rftd.streams.log.bounds import HOTTEST
from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.generation.sampling import (
    COLDEST_TRAINED,
    HIGHEST_BIAS,
    HIGHEST_PENALTY,
    check_sampling,
    other_settings,
    trainable,
    unlike_the_policy,
)

TINY = 5e-324


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"temperature": 0.0},
        {"temperature": HOTTEST},
        {"top_p": TINY},
        {"top_p": 1.0},
        {"top_k": -1},
        {"top_k": 0},
        {"top_k": 10**9},
        {"min_p": 0.0},
        {"min_p": 1.0},
        {"repetition_penalty": TINY},
        {"repetition_penalty": HIGHEST_PENALTY},
        {"presence_penalty": HIGHEST_PENALTY},
        {"presence_penalty": -HIGHEST_PENALTY},
        {"logit_bias": ((0, HIGHEST_BIAS), (10**9, -HIGHEST_BIAS))},
    ],
)
def test_every_bound_belongs_to_what_is_allowed(setting: dict[str, Any]) -> None:
    check_sampling(SamplingSpec(**setting))


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        *(({"temperature": value}, "temperature") for value in (-TINY, -1.0, math.nextafter(HOTTEST, 1e9), math.inf)),
        *(({"top_p": value}, "top_p") for value in (0.0, -0.1, math.nextafter(1.0, 2.0), math.inf)),
        ({"top_k": -2}, "top_k"),
        *(({"min_p": value}, "min_p") for value in (-TINY, math.nextafter(1.0, 2.0))),
        *(({"repetition_penalty": value}, "repetition_penalty") for value in (0.0, -1.0, HIGHEST_PENALTY + 1e-6)),
        *(
            ({"presence_penalty": value}, "presence_penalty")
            for value in (HIGHEST_PENALTY + 1e-6, -HIGHEST_PENALTY - 1e-6)
        ),
        ({"logit_bias": ((-1, 0.0),)}, "logit_bias of token -1"),
        ({"logit_bias": ((0, 1.0), (5, HIGHEST_BIAS + 1))}, "logit_bias of token 5"),
        ({"logit_bias": ((5, -HIGHEST_BIAS - 1),)}, "logit_bias of token 5"),
        *(
            ({name: math.nan}, name)
            for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty")
        ),
        ({"logit_bias": ((5, math.nan),)}, "logit_bias of token 5"),
    ],
)
def test_what_is_beyond_a_bound_is_named_with_its_value_and_a_remedy(setting: dict[str, Any], field: str) -> None:
    with pytest.raises(RolloutError, match=f"was requested with {field} ") as raised:
        check_sampling(SamplingSpec(**setting))
    assert raised.value.field == field
    assert raised.value.fix


@pytest.mark.parametrize(
    ("temperature", "can"),
    [
        (0.0, False),
        (math.nextafter(COLDEST_TRAINED, 0.0), False),
        (COLDEST_TRAINED, True),
        (1.0, True),
        (HOTTEST, True),
        (math.nextafter(HOTTEST, 1e9), False),
        (math.nan, False),
        (math.inf, False),
        (-1.0, False),
    ],
)
def test_temperatures_at_which_a_policy_has_a_gradient(temperature: float, can: bool) -> None:
    assert trainable(temperature) is can


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({}, []),
        ({"temperature": 0.3}, []),
        ({"top_p": 0.9}, ["top_p 0.9"]),
        ({"top_k": 0}, []),
        ({"top_k": 5}, ["top_k 5"]),
        ({"min_p": 0.1}, ["min_p 0.1"]),
        ({"repetition_penalty": 1.1}, ["repetition_penalty 1.1"]),
        ({"presence_penalty": -0.5}, ["presence_penalty -0.5"]),
        ({"logit_bias": ((3, 1.5), (4, 0.0))}, ["logit_bias/3 1.5", "logit_bias/4 0"]),
        ({"top_p": 0.5, "top_k": 2, "min_p": 0.25}, ["top_p 0.5", "top_k 2", "min_p 0.25"]),
    ],
)
def test_what_draws_from_another_distribution_than_the_policy_is_listed(
    setting: dict[str, Any], said: list[str]
) -> None:
    spec = SamplingSpec(**setting)
    assert unlike_the_policy(spec) == said
    assert [name for name, _ in other_settings(spec)] == [
        each.partition(" ")[0] for each in said if not each.startswith(("top_p", "top_k"))
    ]
