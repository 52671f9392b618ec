"""Each built-in operator against a table of 16 experiences, written from the reference's description."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import pytest

from rftd.ops.errors import ConfigError, PipelineError
from rftd.streams.events.experience import ExperienceProduced, Span
from rftd.streams.log.arrays import Array
from rftd.streams.spec.stage_parts import OperatorSpec
from rftd.workers.pipelines.operator import PipelineExperience
from rftd.workers.pipelines.pipeline import OperatorChain
from rftd.workers.pipelines.registry import OPERATORS

REWARDS = (0.0, 1.0, 0.5, -1.0, 1.0, 0.0, 0.25, 2.0, -0.5, 1.0, 0.75, 0.0, 1.0, -2.0, 0.5, 1.0)
FINISH = ("stop", "length", "stop", "prompt_truncated") * 4
ACCURACY = (0.0, 1.0) * 8


def produced(rollout: int, reward: float, *, finish: str = "stop", **metrics: float) -> ExperienceProduced:
    return ExperienceProduced(
        experience=UUID(int=rollout + 1),
        group=UUID(int=99),
        rollout=rollout,
        stage=0,
        lease=UUID(int=98),
        tokens=Array.of([1, 2, 3], "u4"),
        prompt_tokens=1,
        loss_mask=Array.of([1, 1], "u1"),
        logprobs=Array.of([-1.0, -1.0], "f4"),
        spans=(Span(0, 0, 0, 2),),
        reward=reward,
        finish=finish,
        metrics=metrics,
    )


GROUP = tuple(
    produced(number, reward, finish=finish, accuracy=accuracy, brevity=number / 16)
    for number, (reward, finish, accuracy) in enumerate(zip(REWARDS, FINISH, ACCURACY, strict=True))
)


def chain(name: str, **args: Any) -> OperatorChain:
    return OperatorChain([OperatorSpec(name=name, args=args)])


def passed_rollouts(name: str, group: Sequence[ExperienceProduced] = GROUP, **args: Any) -> list[int]:
    """The rollouts kept by one operator."""
    verdicts = chain(name, **args).judge(group).verdicts
    return [event.rollout for event, verdict in zip(group, verdicts, strict=True) if verdict.dropped_by < 0]


@pytest.mark.parametrize(
    ("threshold", "passed"),
    [
        (0.0, [0, 1, 2, 4, 5, 6, 7, 9, 10, 11, 12, 14, 15]),
        (0.5, [1, 2, 4, 7, 9, 10, 12, 14, 15]),
        (1.0, [1, 4, 7, 9, 12, 15]),
        (-2.0, list(range(16))),
        (2.5, []),
    ],
)
def test_reward_filter_keeps_rewards_at_or_above_the_threshold(threshold: float, passed: list[int]) -> None:
    assert passed_rollouts("reward_filter", threshold=threshold) == passed


def test_reward_filter_has_the_threshold_zero_by_default() -> None:
    assert passed_rollouts("reward_filter") == passed_rollouts("reward_filter", threshold=0.0)


@pytest.mark.parametrize(("threshold", "passed"), [(0.0, 16), (0.9, 16), (0.95, 0)])
def test_reward_std_filter_compares_the_population_deviation(threshold: float, passed: int) -> None:
    # The sample's deviation is 0.963, the population's 0.933.
    assert len(passed_rollouts("reward_std_filter", threshold=threshold)) == passed


def test_reward_std_filter_drops_groups_of_equal_rewards() -> None:
    assert passed_rollouts("reward_std_filter", [produced(number, 0.1) for number in range(16)]) == []


@pytest.mark.parametrize(
    ("accuracies", "figures"),
    [
        ((0.0, 1.0) * 8, (0.0, 0.0, 0.0)),
        ((1.0,) * 16, (16.0, 16.0, 0.0)),
        ((0.0,) * 16, (16.0, 0.0, 16.0)),
        ((0.4,) * 16, (16.0, 16.0, 0.0)),
    ],
)
def test_dapo_dynamic_sampling_keeps_mixed_groups(accuracies: tuple[float, ...], figures: tuple[float, ...]) -> None:
    group = [produced(number, 0.0, accuracy=accuracy) for number, accuracy in enumerate(accuracies)]
    verdicts = chain("dapo_dynamic_sampling").judge(group)
    assert sum(verdict.dropped_by == 0 for verdict in verdicts.verdicts) == figures[0]
    names = ("filtered_count", "dropped_all_correct", "dropped_all_wrong")
    assert tuple(verdicts.metrics[f"dapo_dynamic_sampling/{name}"] for name in names) == figures


def test_dapo_dynamic_sampling_compares_a_named_figure_above_its_threshold() -> None:
    assert len(passed_rollouts("dapo_dynamic_sampling", metric_key="brevity", correct_threshold=0.5)) == 16
    assert passed_rollouts("dapo_dynamic_sampling", metric_key="brevity", correct_threshold=0.99) == []


def test_dapo_dynamic_sampling_drops_a_single_experience() -> None:
    assert passed_rollouts("dapo_dynamic_sampling", GROUP[:1]) == []


def test_mask_response_truncated_masks_answers_cut_at_the_limit() -> None:
    verdicts = chain("mask_response_truncated").judge(GROUP)
    assert [verdict.masked for verdict in verdicts.verdicts] == [False, True, False, False] * 4
    assert [verdict.reward for verdict in verdicts.verdicts] == list(REWARDS)
    assert verdicts.metrics == {"mask_response_truncated/masked_count": 4.0}


def test_invalid_reward_filter_drops_rewards_made_infinite_before() -> None:
    shaping = {"reward_shaping_configs": [{"stats_key": "huge", "op_type": "MUL", "weight": 1e9}]}
    operators = [
        OperatorSpec(name="reward_shaping_mapper", args=shaping),
        OperatorSpec(name="invalid_reward_filter"),
    ]
    group = [produced(0, 1.0, huge=1e308), produced(1, 1.0, huge=2.0)]
    assert [verdict.dropped_by for verdict in OperatorChain(operators).judge(group).verdicts] == [1, -1]
    with pytest.raises(PipelineError, match="the reward of rollout 0 is inf"):
        OperatorChain(operators[:1]).judge(group)


def test_pass_rate_calculator_reports_the_mean_reward() -> None:
    verdicts = chain("pass_rate_calculator").judge(GROUP)
    assert verdicts.metrics == {"pass_rate_calculator/pass_rate": pytest.approx(sum(REWARDS) / 16)}
    assert all(verdict.dropped_by < 0 and not verdict.masked for verdict in verdicts.verdicts)


@pytest.mark.parametrize(
    ("operation", "weight", "shaped"),
    [
        ("ADD", 2.0, [reward + 2.0 * number / 16 for number, reward in enumerate(REWARDS)]),
        ("SUB", 1.0, [reward - number / 16 for number, reward in enumerate(REWARDS)]),
        ("MUL", 4.0, [reward * 4.0 * number / 16 for number, reward in enumerate(REWARDS)]),
        ("DIV", 2.0, [reward / (number / 8) if number else reward for number, reward in enumerate(REWARDS)]),
    ],
)
def test_reward_shaping_mapper_combines_reward_and_figure(operation: str, weight: float, shaped: list[float]) -> None:
    config = {"stats_key": "brevity", "op_type": operation, "weight": weight}
    verdicts = chain("reward_shaping_mapper", reward_shaping_configs=[config]).judge(GROUP)
    assert [verdict.reward for verdict in verdicts.verdicts] == pytest.approx(shaped)
    changes = [after - before for after, before in zip(shaped, REWARDS, strict=True)]
    assert verdicts.metrics["reward_shaping_mapper/reward_diff/max"] == pytest.approx(max(changes))


def test_reward_shaping_mapper_leaves_rollouts_without_the_figure() -> None:
    verdicts = chain("reward_shaping_mapper", reward_shaping_configs=[{"stats_key": "quality"}]).judge(GROUP)
    assert [verdict.reward for verdict in verdicts.verdicts] == list(REWARDS)


@pytest.mark.parametrize(
    ("name", "args", "fault"),
    [
        ("reward_shaping_mapper", {"reward_shaping_configs": [{"stats_key": "x", "op_type": "add"}]}, "add"),
        ("reward_shaping_mapper", {"reward_shaping_configs": []}, "names no figure"),
        ("reward_shaping_mapper", {}, "reward_shaping_configs"),
        ("reward_filter", {"threshold": "high"}, "threshold"),
        ("reward_filter", {"least": 1.0}, "least"),
        ("reward_filer", {}, "reward_filter"),
    ],
)
def test_operator_with_wrong_arguments_is_refused(name: str, args: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        chain(name, **args)


def test_dropped_experiences_name_the_first_operator_that_dropped_them() -> None:
    operators = [
        OperatorSpec(name="pass_rate_calculator"),
        OperatorSpec(name="reward_filter", args={"threshold": 0.0}),
        OperatorSpec(name="reward_filter", args={"threshold": 1.0}),
    ]
    verdicts = OperatorChain(operators).judge(GROUP).verdicts
    assert [verdict.dropped_by for verdict in verdicts[:5]] == [2, -1, 2, 1, -1]


def _raises(experiences: Sequence[PipelineExperience]) -> Any:
    raise OSError("no connection")


def _repeats(experiences: Sequence[PipelineExperience]) -> Any:
    return [*experiences, experiences[0]], {}


def _renames(experiences: Sequence[PipelineExperience]) -> Any:
    return [msgspec.structs.replace(experience, rollout=99) for experience in experiences[:1]], {}


def _blurs(experiences: Sequence[PipelineExperience]) -> Any:
    return [msgspec.structs.replace(experience, reward=math.nan) for experience in experiences], {}


def _answers_nothing(experiences: Sequence[PipelineExperience]) -> Any:
    return None


def _leaves(experiences: Sequence[PipelineExperience]) -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("process", "fault"),
    [
        (_raises, "operator 'own' raised OSError: no connection"),
        (_repeats, "operator 'own' returned rollouts"),
        (_renames, "operator 'own' returned rollouts .99."),
        (_blurs, "reward of rollout 0 is nan"),
        (_answers_nothing, "operator 'own' raised TypeError"),
        (_leaves, "operator 'own' raised SystemExit"),
    ],
)
def test_operator_at_fault_fails_its_group(process: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        def process(self, experiences: Sequence[PipelineExperience]) -> Any:
            return process(experiences)

    monkeypatch.setattr(type(OPERATORS), "open", lambda self, name, args: Own())
    with pytest.raises(PipelineError, match=fault):
        chain("own").judge(GROUP)
