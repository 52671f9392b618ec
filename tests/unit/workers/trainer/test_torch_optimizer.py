"""Learning rates of a stage's steps."""

from __future__ import annotations

import pytest
import torch

from rftd.ops.errors import ConfigError
from rftd.streams.spec import OptimizerSpec
from rftd.workers.trainer.engines.torch.optimizer import learning_rate, make_optimizer


def test_constant_after_a_linear_warm_up() -> None:
    spec = OptimizerSpec(lr=1.0, warmup_steps=4)
    assert [learning_rate(spec, step, 10) for step in (1, 2, 4, 5, 10)] == [0.25, 0.5, 1.0, 1.0, 1.0]


def test_cosine_begins_at_the_rate_and_reaches_its_minimum_at_the_last_step() -> None:
    spec = OptimizerSpec(lr=2.0, warmup_steps=2, scheduler="cosine", min_lr_ratio=0.1)
    rates = [learning_rate(spec, step, 12) for step in range(1, 14)]
    assert rates[:2] == pytest.approx([1.0, 2.0])
    assert rates[6] == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    assert rates[11] == rates[12] == pytest.approx(0.2)
    assert sorted(set(rates[1:]), reverse=True) == rates[1:12]


@pytest.mark.parametrize("warmup_steps", [0, 1, 3, 10])
@pytest.mark.parametrize("total_steps", [1, 2, 10, 11])
def test_each_cosine_has_the_whole_rate_once_and_ends_at_its_minimum(warmup_steps: int, total_steps: int) -> None:
    spec = OptimizerSpec(lr=2.0, warmup_steps=warmup_steps, scheduler="cosine", min_lr_ratio=0.1)
    rates = [learning_rate(spec, step, total_steps) for step in range(1, total_steps + 1)]
    if total_steps > max(1, warmup_steps):
        assert rates[-1] == pytest.approx(0.2)
        assert rates.count(2.0) == 1
    else:
        assert rates[-1] == pytest.approx(2.0 * total_steps / max(1, warmup_steps))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="lion"):
        make_optimizer(OptimizerSpec(kind="lion"), [torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(ConfigError, match="linear"):
        learning_rate(OptimizerSpec(scheduler="linear"), 1, 10)
