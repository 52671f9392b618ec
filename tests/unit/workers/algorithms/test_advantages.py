"""Advantages of one closed group."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from rftd.ops.errors import ConfigError
from rftd.streams.spec import AlgorithmSpec
from rftd.workers.algorithms.advantages import ADVANTAGES, advantages_of

GRPO = AlgorithmSpec(kind="grpo", advantage="grpo")


def test_grpo_is_the_reward_in_unbiased_standard_deviations() -> None:
    rewards = [0.0, 1.0, 1.0, 0.25]
    expected = [(r - statistics.mean(rewards)) / (statistics.stdev(rewards) + 1e-6) for r in rewards]
    got = advantages_of(GRPO, np.array(rewards, np.float32))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_grpo_of_a_group_of_one_is_its_reward() -> None:
    np.testing.assert_allclose(advantages_of(GRPO, np.array([0.5], np.float32)), [0.5 / (1 + 1e-6)])


def test_equal_rewards_teach_nothing() -> None:
    assert not advantages_of(GRPO, np.ones(8, np.float32)).any()
    threshold = ADVANTAGES.open("grpo", {"std_threshold": 0.1})
    assert not threshold.informative(np.ones(8, np.float32))
    assert not threshold.informative(np.ones(1, np.float32))
    assert threshold.informative(np.array([0, 1], np.float32))
    assert ADVANTAGES.open("grpo").informative(np.ones(8, np.float32))


def test_rewards_in_float32_near_a_large_offset_keep_their_differences() -> None:
    rewards = np.array([1e6, 1e6 + 1], np.float32)
    np.testing.assert_allclose(advantages_of(GRPO, rewards), [-(0.5**0.5), 0.5**0.5], rtol=1e-5)


@pytest.mark.parametrize("arguments", [{"std_cal_level": "batch"}, {"epsilon": 0.0}, {"rank_penalty": 0.1}, {"no": 1}])
def test_arguments_that_cannot_be_honoured_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ADVANTAGES.open("grpo", arguments)


def test_none_is_zero() -> None:
    assert not advantages_of(AlgorithmSpec(kind="sft"), np.ones(3, np.float32)).any()
