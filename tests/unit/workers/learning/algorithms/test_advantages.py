"""Advantages of closed groups: the values of each function."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest

from rftd.ops.errors import ConfigError, TrainError
from rftd.streams.spec.spec import AlgorithmSpec
from rftd.workers.learning.algorithms.advantages import ADVANTAGES, ClosedGroup, advantages_of
from rftd.workers.learning.algorithms.advantages.advantage import Substituting
from rftd.workers.learning.algorithms.advantages.group_metrics import group_metrics

REWARDS = [0.0, 1.0, 1.0, 0.25]


def group(*rewards: float, seed: int = 0) -> ClosedGroup:
    return ClosedGroup(rewards=np.array(rewards, np.float32), seed=seed)


def values(name: str, *groups: ClosedGroup, **arguments: object) -> list[list[float]]:
    found = ADVANTAGES.open(name, arguments).advantages(groups)
    assert all(each.dtype == np.float32 for each in found)
    return [each.tolist() for each in found]


def near(expected: object) -> object:
    return pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_grpo_is_the_reward_in_unbiased_standard_deviations() -> None:
    expected = [(r - statistics.mean(REWARDS)) / (statistics.stdev(REWARDS) + 1e-6) for r in REWARDS]
    assert values("grpo", group(*REWARDS)) == [near(expected)]
    assert values("grpo_verl", group(*REWARDS)) == [near(expected)]


def test_grpo_of_a_group_of_one_is_its_reward() -> None:
    assert values("grpo", group(0.5)) == [near([0.5 / (1 + 1e-6)])]


def test_grpo_by_the_std_of_the_batch_keeps_the_mean_of_the_group() -> None:
    std = statistics.stdev([0.0, 1.0, 5.0, 7.0, 3.0])
    got = values("grpo", group(0.0, 1.0), group(5.0, 7.0), group(3.0), std_cal_level="batch")
    assert got == [near([-0.5 / std, 0.5 / std]), near([-1 / std, 1 / std]), near([3 / std])]


def test_equal_rewards_teach_nothing() -> None:
    assert values("grpo", group(*[1.0] * 8)) == [[0.0] * 8]
    threshold = ADVANTAGES.open("grpo", {"std_threshold": 0.1})
    assert not threshold.informative(group(*[1.0] * 8))
    assert not threshold.informative(group(1.0))
    assert threshold.informative(group(0.0, 1.0))
    assert ADVANTAGES.open("grpo").informative(group(*[1.0] * 8))


def test_a_group_at_the_threshold_has_no_advantage() -> None:
    std = statistics.stdev([0.0, 0.5])
    got = values("grpo", group(0.0, 0.5), group(0.0, 1.0), group(2.0), std_threshold=std)
    assert got == [[0.0, 0.0], near([-(0.5**0.5), 0.5**0.5]), [0.0]]


def test_a_rank_penalty_shapes_numerator_mean_and_std() -> None:
    likely = ClosedGroup(
        rewards=np.array([1, 1, 0, 1], np.float32), mean_logprobs=np.array([-0.1, -3, -2, -1], np.float32)
    )
    shaped = [1 - 0.2 * 3 / 4, 1.0, 0.0, 1 - 0.2 * 2 / 4]
    expected = [(r - statistics.mean(shaped)) / (statistics.stdev(shaped) + 1e-6) for r in shaped]
    assert values("grpo", likely, rank_penalty=0.2) == [near(expected)]
    assert ADVANTAGES.open("grpo", {"rank_penalty": 0.2}).member_fields == {"mean_logprobs"}
    # Equal rewards of unequal likelihood differ once they are shaped: that is not known before they are read.
    judge = ADVANTAGES.open("grpo", {"rank_penalty": 0.2, "std_threshold": 0.0})
    assert judge.informative(group(1.0, 1.0))
    read = ClosedGroup(rewards=np.ones(2, np.float32), mean_logprobs=np.array([-1, -1], np.float32))
    assert not judge.informative(read)


def test_groups_that_teach_nothing_are_replaced_by_others_of_the_batch() -> None:
    function = ADVANTAGES.open("grpo", {"std_threshold": 0.0, "duplicate_experiences": True})
    assert isinstance(function, Substituting)
    good = [group(0.0, 1.0, seed=seed) for seed in (5, 6, 7)]
    idle = [group(1.0, 1.0, seed=seed) for seed in range(20)]
    assert all(function.informative(each) for each in idle), "else they would not be planned"
    found = function.substitutes([*idle, *good])
    assert found.keys() == set(range(20))
    assert set(found.values()) == {20, 21, 22}
    assert function.substitutes([*idle, *good]) == found
    turned = function.substitutes([*good[::-1], *idle])
    assert {index - 3: 22 - place for index, place in turned.items()} == found, "the order plays no part"
    assert function.substitutes(idle) == {}, "there is nothing to take"
    assert function.substitutes(good) == {}


def test_rewards_in_float32_near_a_large_offset_keep_their_differences() -> None:
    assert values("grpo", group(1e6, 1e6 + 1)) == [near([-(0.5**0.5), 0.5**0.5])]


def test_reinforce_is_the_reward() -> None:
    assert values("reinforce", group(*REWARDS), group(3.0)) == [REWARDS, [3.0]]


def test_rloo_compares_with_the_others() -> None:
    expected = [r - statistics.mean(REWARDS[:i] + REWARDS[i + 1 :]) for i, r in enumerate(REWARDS)]
    assert values("rloo", group(*REWARDS), group(3.0)) == [near(expected), [3.0]]


def test_remax_compares_with_the_greedy_answer() -> None:
    rewards = np.array([0.25, 0.0, 1.0], np.float32)
    greedy = ClosedGroup(rewards=rewards, greedy=np.array([True, False, False]))
    failed = ClosedGroup(rewards=rewards, greedy=np.zeros(3, np.bool_))
    assert values("remax", greedy, failed) == [[0.0, -0.25, 0.75], values("rloo", group(*rewards.tolist()))[0]]
    assert ADVANTAGES.open("remax").greedy_rollouts == 1


def test_opmd_takes_off_a_baseline() -> None:
    mean = statistics.mean(REWARDS)
    assert values("opmd", group(*REWARDS), group(2.0)) == [near([r - mean for r in REWARDS]), [2.0]]
    baseline = 0.5 * math.log(statistics.mean(math.exp(r / 0.5) for r in REWARDS))
    expected = [r - baseline for r in REWARDS]
    assert values("opmd", group(*REWARDS), opmd_baseline="logavgexp", tau=0.5) == [near(expected)]
    assert values("opmd", group(1e5, 0.0), opmd_baseline="logavgexp") == [near([math.log(2), math.log(2) - 1e5])]


def test_asymre_shifts_the_mean() -> None:
    shifted = statistics.mean(REWARDS) - 0.1
    assert values("asymre", group(*REWARDS), group(2.0)) == [near([r - shifted for r in REWARDS]), [2.0]]


def test_grpo_without_a_std_is_the_reward_less_the_mean() -> None:
    """Dr. GRPO."""
    expected = [r - statistics.mean(REWARDS) for r in REWARDS]
    assert values("grpo", group(*REWARDS), group(2.0), std_cal_level="none") == [near(expected), [2.0]]


def test_overlong_responses_lose_reward_in_the_last_tokens_before_the_limit() -> None:
    """DAPO, equation 13: nothing up to 16 tokens, a part up to 20, all of the penalty from there."""
    lengths = [3, 16, 17, 19, 20, 50]
    rewards = [1.0, 1.0, 1.0, 0.0, 1.0, 0.0]
    long = ClosedGroup(rewards=np.array(rewards, np.float32), lengths=np.array(lengths))
    punished = []
    for reward, length in zip(rewards, lengths, strict=True):
        if length <= 20 - 4:
            punished.append(reward)
        elif length <= 20:
            punished.append(reward + 0.5 * ((20 - 4) - length) / 4)
        else:
            punished.append(reward - 0.5)
    expected = [(r - statistics.mean(punished)) / (statistics.stdev(punished) + 1e-6) for r in punished]
    given = {"max_response_tokens": 20, "overlong_buffer": 4, "overlong_penalty": 0.5}
    assert values("grpo", long, **given) == [near(expected)]
    function = ADVANTAGES.open("grpo", {**given, "std_threshold": 0.0})
    assert function.member_fields == {"lengths"}
    right = ClosedGroup(rewards=np.ones(2, np.float32), lengths=np.array([3, 50]))
    assert not function.informative(right), "with equal rewards a group teaches nothing but brevity"
    assert not function.advantages([right])[0].any()


def test_opo_weighs_the_baseline_by_length() -> None:
    lengths = [10, 1, 4, 25]
    long = ClosedGroup(rewards=np.array(REWARDS, np.float32), lengths=np.array(lengths))
    baseline = sum(n * r for n, r in zip(lengths, REWARDS, strict=True)) / sum(lengths)
    single = ClosedGroup(rewards=np.array([3.0], np.float32), lengths=np.array([7]))
    assert values("opo", long, single) == [near([r - baseline for r in REWARDS]), [3.0]]
    empty = ClosedGroup(rewards=np.array([1.0, 0.0], np.float32), lengths=np.array([0, 0]))
    assert values("opo", empty) == [[0.5, -0.5]]
    assert ADVANTAGES.open("opo").member_fields == {"lengths"}


def test_of_a_group_the_best_alone_teaches_by_its_lead_over_the_second() -> None:
    """verl's grpo_passk, which divides by torch's unbiased std."""
    lead = 3.0 - 1.5
    std = statistics.stdev([0.5, 3.0, 1.5, -1.0])
    clear = group(0.5, 3.0, 1.5, -1.0)
    expected = [near([0.0, lead / (std + 1e-6), 0.0, 0.0]), [0.0, 0.0, 0.0], [0.0]]
    assert values("grpo_passk", clear, group(1.0, 1.0, 0.0), group(2.0)) == expected
    assert values("grpo_passk", clear, std_cal_level="none") == [[0.0, lead, 0.0, 0.0]]


def test_maxrl_divides_by_the_mean() -> None:
    mean = statistics.mean(REWARDS)
    assert values("maxrl", group(*REWARDS)) == [near([(r - mean) / mean for r in REWARDS])]
    # One success of K is worth K - 1: the gradient of log p, truncated at K rollouts (arXiv 2602.02710).
    assert values("maxrl", group(1.0, 0.0, 0.0, 0.0)) == [[3.0, -1.0, -1.0, -1.0]]
    assert values("maxrl", group(0.0, 0.0), group(-1.0, 0.5), group(2.0)) == [[0.0, 0.0], [0.0, 0.0], [0.0]]


def test_gpg_makes_up_for_groups_without_a_gradient() -> None:
    """Groups of equal rewards hold 5 of the 4 + 3 + 2 + 1 experiences."""
    mean = statistics.mean(REWARDS)
    got = values("gpg", group(*REWARDS), group(0.1, 0.1, 0.1), group(0.0, 0.0), group(0.5))
    scale = 10 / 5
    assert got == [near([scale * (r - mean) for r in REWARDS]), [0.0] * 3, [0.0] * 2, near([scale * 0.5])]
    assert values("gpg", group(1.0, 1.0)) == [[0.0, 0.0]]


def test_gdpo_normalises_each_part_in_its_group_and_their_sum_in_the_batch() -> None:
    """The sum is TRL's normalize_then_sum: a response that lacks a part is not in that part's mean."""
    nan = math.nan
    batch = [
        {"accuracy": [1.0, 0.0, 0.0, 1.0], "format": [0.1, 0.1, nan, 0.2], "remark": [5.0, 1.0, 1.0, 1.0]},
        {"accuracy": [1.0, 1.0], "format": [0.0, 0.2], "remark": [0.0, 0.0]},
    ]
    weights = {"accuracy": 1.0, "format": 0.5}
    sums = []
    for parts in batch:
        total = [0.0] * len(parts["accuracy"])
        for name, weight in weights.items():
            there = [x for x in parts[name] if not math.isnan(x)]
            for place, x in enumerate(parts[name]):
                if not math.isnan(x):
                    total[place] += weight * (x - statistics.mean(there)) / (statistics.stdev(there) + 1e-6)
        sums.append(total)
    every = [x for total in sums for x in total]
    expected = [[(x - statistics.mean(every)) / (statistics.stdev(every) + 1e-6) for x in total] for total in sums]
    groups = [
        ClosedGroup(
            rewards=np.zeros(len(parts["accuracy"]), np.float32),
            parts={name: np.array(part, np.float32) for name, part in parts.items()},
        )
        for parts in batch
    ]
    assert values("gdpo", *groups, weights=weights) == [near(each) for each in expected]
    assert ADVANTAGES.open("gdpo").informative(groups[1])
    assert ADVANTAGES.open("gdpo").member_fields == {"parts"}
    with pytest.raises(TrainError, match="acuracy") as raised:
        ADVANTAGES.open("gdpo", {"weights": {"acuracy": 1.0}}).advantages(groups)
    assert "accuracy, format, remark" in str(raised.value.fix)


def test_gdpo_of_a_reward_without_parts_is_grpo_whitened() -> None:
    one = values("grpo", group(*REWARDS))[0]
    assert values("gdpo", group(*REWARDS)) == [near([x / (statistics.stdev(one) + 1e-6) for x in one])]


@pytest.mark.parametrize("k", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("right", range(6))
def test_pass_at_k_is_the_mean_over_all_sets_of_k(k: int, right: int) -> None:
    rewards = [1.0] * right + [0.0] * (5 - right)
    sets = list(itertools.combinations(range(5), min(k, 5)))
    passed = [max(rewards[member] for member in each) for each in sets]
    mean = statistics.mean(passed)
    std = statistics.pstdev(passed)
    expected = []
    for member in range(5):
        own = [value for value, each in zip(passed, sets, strict=True) if member in each]
        expected.append((statistics.mean(own) - mean) / (std + 1e-6))
    assert values("pass_at_k", group(*rewards), k=k) == [pytest.approx(expected, rel=1e-5, abs=1e-6)]


def test_pass_at_k_takes_rewards_above_a_bound_for_right() -> None:
    assert values("pass_at_k", group(0.9, 0.2, 0.4), k=2) == values("pass_at_k", group(1.0, 0.0, 0.0), k=2)
    assert values("pass_at_k", group(0.9, 0.2, 0.4), k=1, right_above=0.3)[0][2] > 0
    assert values("pass_at_k", group(1.0), group(0.0)) == [[0.0], [0.0]]


def test_best_chooses_the_best_of_a_group() -> None:
    function = ADVANTAGES.open("best")
    groups = [ClosedGroup(rewards=np.array(each, np.float32)) for each in ([0, 1, 0.5, 1], [1, 1], [0.2])]
    assert [each.tolist() for each in function.advantages(groups)] == [[0, 1, 0, 1], [0, 0], [1]]


def test_rec_takes_off_the_mean_and_accepts_a_group_of_one() -> None:
    mean, std = statistics.mean(REWARDS), statistics.pstdev(REWARDS)
    assert values("rec", group(*REWARDS), group(2.0)) == [near([r - mean for r in REWARDS]), [2.0]]
    expected = [(r - mean) / (std + 1e-6) for r in REWARDS]
    assert values("rec", group(*REWARDS), std_normalize=True) == [near(expected)]


def test_rec_drops_surplus_failures_the_same_ones_each_time() -> None:
    rewards = [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    dropped = set()
    for seed in range(40):
        got = values("rec", group(*rewards, seed=seed), drop="balance")[0]
        assert got == values("rec", group(*rewards, seed=seed), drop="balance")[0]
        # One is left beside the one that is right: their mean is 0.5.
        assert sorted(got) == [-0.5, 0.0, 0.0, 0.0, 0.0, 0.5]
        assert got[2] == 0.5
        dropped.add(got.index(-0.5))
    assert dropped == {0, 1, 3, 4, 5}, "by chance"
    assert values("rec", group(0.0, 1.0, 1.0), drop="balance") == [near([-2 / 3, 1 / 3, 1 / 3])]


def steps(rewards: list[float], runs: list[int], places: list[int], **more: object) -> ClosedGroup:
    return ClosedGroup(
        rewards=np.array(rewards, np.float32),
        runs=np.array(runs),
        steps=np.array(places),
        **more,  # type: ignore[arg-type]
    )


def test_step_wise_grpo_gives_each_step_what_its_run_ended_with() -> None:
    mixed = steps([9.0, 1.0, 0.0, 9.0, 0.5], [3, 3, 7, 3, 8], [0, 2, 0, 1, 0])
    last = {3: 1.0, 7: 0.0, 8: 0.5}
    mean, std = statistics.mean(last.values()), statistics.stdev(last.values())
    expected = [(last[run] - mean) / (std + 1e-6) for run in (3, 3, 7, 3, 8)]
    assert values("step_wise_grpo", mixed) == [near(expected)]
    normed = [each / count for each, count in zip(expected, (3, 3, 1, 3, 1), strict=True)]
    assert values("step_wise_grpo", mixed, enable_step_norm=True) == [near(normed)]
    plain = [last[run] - mean for run in (3, 3, 7, 3, 8)]
    assert values("step_wise_grpo", mixed, std_cal_level="none") == [near(plain)]
    whole = statistics.stdev([*last.values(), 4.0])
    got = values("step_wise_grpo", mixed, steps([4.0], [0], [0]), std_cal_level="batch")
    assert got == [near([each / whole for each in plain]), near([4.0 / whole])]
    assert not ADVANTAGES.open("step_wise_grpo", {"std_threshold": 0.5}).informative(mixed)
    assert ADVANTAGES.open("step_wise_grpo", {"std_threshold": 0.49}).informative(mixed)


def test_step_wise_grpo_of_single_steps_is_grpo() -> None:
    assert values("step_wise_grpo", group(*REWARDS)) == values("grpo", group(*REWARDS))


def test_gigpo_adds_how_runs_and_steps_did() -> None:
    one = steps(
        [1.0, 1.0, 0.0, 0.0],
        [0, 0, 1, 1],
        [0, 1, 0, 1],
        step_rewards=np.array([0.25, 0.5, 0.0, math.nan], np.float32),
        states=("start", "a", "start", ""),
    )
    # Its runs brought 0.75 and 0: mean 0.375. From "start" on, discounted by a half: 0.5 and 0. "a" has one step.
    expected = [0.375 + 2 * 0.25, 0.375, -0.375 + 2 * -0.25, -0.375]
    assert values("gigpo", one, gamma=0.5, omega=2.0) == [near(expected)]
    meet = steps([1.0, 0.0, 4.0], [0, 1, 2], [0, 0, 0], states=("a", "a", ""))
    thirds = [-2 / 3 + 0.5, -5 / 3 - 0.5, 7 / 3]
    assert values("gigpo", meet) == [near(thirds)]
    std = statistics.stdev([0.75, 0.0])
    assert values("gigpo", one, fnorm="std", omega=0.0)[0] == near(
        [0.375 / std, 0.375 / std, -0.375 / std, -0.375 / std]
    )


def test_gigpo_compares_no_state_of_another_task() -> None:
    """Both tasks begin with the same words; all runs of each did alike."""
    solved = steps([1.0, 1.0], [0, 1], [0, 0], states=("start", "start"))
    failed = steps([0.0, 0.0], [0, 1], [0, 0], states=("start", "start"))
    assert values("gigpo", solved, failed) == [[0.0, 0.0], [0.0, 0.0]]


def test_gigpo_takes_a_sparse_reward_with_the_last_step() -> None:
    sparse = steps([5.0, 1.0, 5.0, 0.0], [0, 0, 1, 1], [0, 1, 0, 1], states=("s", "t", "s", "u"))
    assert values("gigpo", sparse, gamma=0.5) == [near([0.5 + 0.25, 0.5, -0.5 - 0.25, -0.5])]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("grpo", {"std_cal_level": "run"}),
        ("grpo", {"epsilon": 0.0}),
        ("grpo", {"std_threshold": -1.0}),
        ("grpo", {"rank_penalty": 2.0}),
        ("grpo", {"duplicate_experiences": True}),
        ("grpo", {"no": 1}),
        ("opmd", {"opmd_baseline": "median"}),
        ("opmd", {"tau": 0.0}),
        ("grpo", {"overlong_buffer": 4}),
        ("grpo", {"max_response_tokens": 4}),
        ("grpo", {"overlong_buffer": 5, "max_response_tokens": 4}),
        ("grpo", {"overlong_buffer": 0, "max_response_tokens": 4}),
        ("grpo", {"overlong_buffer": 1, "max_response_tokens": 4, "overlong_penalty": -1.0}),
        ("gdpo", {"weights": {}}),
        ("gdpo", {"weights": {"form": 0.0}}),
        ("gdpo", {"weights": {"form": "1"}}),
        ("gdpo", {"weights": {"form": math.inf}}),
        ("gdpo", {"weights": ["form"]}),
        ("gdpo", {"epsilon": 0.0}),
        ("pass_at_k", {"k": 0}),
        ("pass_at_k", {"k": 2.5}),
        ("pass_at_k", {"epsilon": 0.0}),
        ("rec", {"drop": "all"}),
        ("step_wise_grpo", {"std_cal_level": "run"}),
        ("gigpo", {"fnorm": "mean"}),
        ("gigpo", {"gamma": 1.5}),
        ("ppo", {"gamma": -0.1}),
        ("ppo", {"lam": 1.1}),
        ("jsd", {"lambda_coef": 2.0}),
        ("jsd", {"temperature": 0.0}),
        ("jsd", {"form": "other"}),
        ("clipv", {"max_frac": 2.0}),
    ],
)
def test_arguments_that_cannot_be_honoured_are_refused(name: str, arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ADVANTAGES.open(name, arguments)


def test_none_is_zero() -> None:
    assert not advantages_of(AlgorithmSpec(kind="sft"), [group(1.0, 1.0, 1.0)])[0].any()


def test_what_is_reported_of_groups() -> None:
    function = ADVANTAGES.open("grpo", {"std_threshold": 0.0})
    found = group_metrics(function, [group(0.0, 1.0), group(1.0, 1.0, 1.0)])
    assert found == {
        "group_advantages/reward_mean/mean": 0.75,
        "group_advantages/reward_mean/max": 1.0,
        "group_advantages/reward_mean/min": 0.5,
        "group_advantages/reward_std/mean": near(0.5**0.5 / 2),
        "group_advantages/reward_std/max": near(0.5**0.5),
        "group_advantages/reward_std/min": 0.0,
        "group_advantages/filtered_count": 3.0,
    }
    assert group_metrics(function, []) == {}
