"""Advantages of tokens, against loops written from the formulas, and advantages of verl's own making."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rftd.workers.learning.algorithms.advantages import ADVANTAGES, AdvantageFunction, ClosedGroup
from rftd.workers.learning.losses.batch_tokens import BatchTokens
from rftd.workers.learning.token_advantages.token_advantage import TokenAdvantage

Rows = list[list[float]]
VERL = json.loads((Path(__file__).parents[4] / "golden" / "advantages" / "verl.json").read_text())


def make_batch(rows: dict[str, Rows], rewards: list[float], **more: Any) -> BatchTokens:
    """A batch of responses whose tokens are all trained; one of no token takes no place."""
    some = next(iter(rows.values()))
    tokens = {name: torch.tensor([x for row in each for x in row], dtype=torch.float64) for name, each in rows.items()}
    count = len(tokens[next(iter(tokens))])
    given: dict[str, Any] = {
        "old_logprobs": torch.full((count,), -1.0, dtype=torch.float64),
        "advantages": torch.zeros(count, dtype=torch.float64),
        "rewards": torch.tensor(rewards, dtype=torch.float64),
        "expert": torch.zeros(count, dtype=torch.bool),
        "sequence": torch.tensor([i for i, row in enumerate(some) for _ in row], dtype=torch.int64),
        "sequences": len(some),
    }
    return BatchTokens(**given | tokens | more)


def token_function(name: str, arguments: dict[str, Any] | None = None) -> TokenAdvantage:
    function: AdvantageFunction = ADVANTAGES.open(name, arguments)
    assert isinstance(function, TokenAdvantage)
    return function


def by_row(batch: BatchTokens, values: Tensor) -> Rows:
    return [values[batch.sequence == row].tolist() for row in range(batch.sequences)]


def near(expected: object) -> object:
    # verl adds 1e-8 to counts, which whitening a batch without variance makes 3e-6.
    return pytest.approx(expected, rel=1e-5, abs=1e-5)


def whitened(rows: Rows) -> Rows:
    values = [x for row in rows for x in row]
    mean, variance = statistics.mean(values), statistics.variance(values)
    return [[(x - mean) / math.sqrt(variance + 1e-8) for x in row] for row in rows]


def verl_cases() -> Iterator[Any]:
    for fixture in VERL["fixtures"]:
        for number, case in enumerate(fixture["cases"]):
            yield pytest.param(fixture["responses"], case, id=f"{case['advantage']}-{fixture['name']}-{number}")


@pytest.mark.parametrize(("responses", "case"), list(verl_cases()))
def test_values_are_verls(responses: list[dict[str, Any]], case: dict[str, Any]) -> None:
    groups = sorted({each["group"] for each in responses})
    function = ADVANTAGES.open(case["advantage"], case["arguments"])
    if isinstance(function, TokenAdvantage):
        keep = [[place for place, on in enumerate(each["mask"]) if on] for each in responses]
        rows = {
            key: [[each[key][at] for at in places] for each, places in zip(responses, keep, strict=True)]
            for key in ("values", "logprobs", "squares", *(("penalties",) if case["penalties"] else ()))
        }
        numbers = torch.tensor([each["group"] for each in responses])
        batch = make_batch(rows, [each["reward"] for each in responses], groups=numbers)
        assert by_row(batch, function.token_advantages(batch)) == [near(row) for row in case["values"]]
        return
    members = [[each["reward"] for each in responses if each["group"] == group] for group in groups]
    first = [np.arange(len(each)) == 0 if function.greedy_rollouts else None for each in members]
    views = [
        ClosedGroup(rewards=np.array(each, np.float32), greedy=greedy)
        for each, greedy in zip(members, first, strict=True)
    ]
    found = np.concatenate(function.advantages(views))
    for advantage, values in zip(found, case["values"], strict=True):
        assert values == near([float(advantage)] * len(values))


def test_a_response_without_a_group_has_no_baseline() -> None:
    rows = {"logprobs": [[-0.5], [-1.0], [-2.0]], "squares": [[0.5], [0.4], [0.3]]}
    batch = make_batch(rows, [1.0, 2.0, 4.0], groups=torch.tensor([-1, 3, -1]))
    assert token_function("optimal_token_baseline").token_advantages(batch).tolist() == [1.0, 2.0, 4.0]


RESPONSES: Rows = [[0.1, -0.4, 0.3], [], [0.7], [0.2, 0.2, -0.1, 0.5]]
REWARDS = [1.0, 9.0, 0.0, -2.0]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.7), (1.0, 0.0)])
def test_ppo_estimates_each_token_from_those_after_it(gamma: float, lam: float) -> None:
    penalties = [[0.01 * (i + 1) for i in range(len(row))] for row in RESPONSES]
    batch = make_batch({"values": RESPONSES, "penalties": penalties}, REWARDS)
    expected: Rows = []
    for values, taken, reward in zip(RESPONSES, penalties, REWARDS, strict=True):
        row = []
        for t in range(len(values)):
            total = 0.0
            for k in range(t, len(values)):
                last = k == len(values) - 1
                following = 0.0 if last else values[k + 1]
                delta = (reward if last else 0.0) - taken[k] + gamma * following - values[k]
                total += (gamma * lam) ** (k - t) * delta
            row.append(total)
        expected.append(row)
    function = ADVANTAGES.open("ppo", {"gamma": gamma, "lam": lam})
    assert by_row(batch, function.estimate(batch)) == [near(row) for row in expected]  # type: ignore[attr-defined]
    assert isinstance(function, TokenAdvantage)
    assert function.needs == {"values"}
    assert by_row(batch, function.token_advantages(batch)) == [near(row) for row in whitened(expected)]


def test_reinforceplusplus_discounts_from_the_end() -> None:
    batch = make_batch({"old_logprobs": RESPONSES}, REWARDS)
    expected = [
        [0.9 ** (len(row) - 1 - t) * reward for t in range(len(row))]
        for row, reward in zip(RESPONSES, REWARDS, strict=True)
    ]
    function = token_function("reinforceplusplus", {"gamma": 0.9})
    assert by_row(batch, function.token_advantages(batch)) == [near(row) for row in whitened(expected)]


def test_reinforceplusplus_baseline_whitens_what_is_left_of_the_mean_of_a_group() -> None:
    function = token_function("reinforceplusplus_baseline")
    members = [1.0, 0.0, 0.25]
    of_group = function.advantages([ClosedGroup(rewards=np.array(each, np.float32)) for each in (members, [-2.0])])
    given = np.concatenate(of_group).tolist()
    assert given == near([*(r - statistics.mean(members) for r in members), -2.0])
    expected = [[advantage] * len(row) for advantage, row in zip(given, RESPONSES, strict=True)]
    batch = make_batch({"advantages": expected}, REWARDS)
    assert by_row(batch, function.token_advantages(batch)) == [near(row) for row in whitened(expected)]


def test_distillation_follows_the_teacher() -> None:
    teacher = [[-0.5, -3.0], [-1.0]]
    batch = make_batch({"old_logprobs": [[-1.0, -1.0], [-0.25]], "teacher_logprobs": teacher}, [0.0, 0.0])
    function = token_function("on_policy_distill", {"kl_coef": 2.0})
    assert function.needs == {"teacher_logprobs"}
    assert by_row(batch, function.token_advantages(batch)) == [[1.0, -4.0], [-1.5]]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("heat", [None, 2.0])
def test_jsd_compares_both_with_their_mixture(share: float, heat: float | None) -> None:
    old, teacher = [-1.0, -4.0, -0.3, -40.0], [-2.0, -1.0, -0.3, -0.1]
    batch = make_batch({"old_logprobs": [old], "teacher_logprobs": [teacher]}, [0.0])
    expected, downhill = [], []
    for s, t in zip([x / (heat or 1) for x in old], [x / (heat or 1) for x in teacher], strict=True):
        middle = math.log(share * math.exp(t) + (1 - share) * math.exp(s))
        both = share * (t - middle) + (1 - share) * (s - middle)
        expected.append(-1.5 * {0.0: s - t, 1.0: t - s}.get(share, both))
        ends = {0.0: 1 - math.exp(min(20.0, t - s)), 1.0: s - t}
        downhill.append(-1.5 * ends.get(share, (1 - share) * (s - middle)))
    arguments = {"kl_coef": 1.5, "lambda_coef": share, "temperature": heat, "chunk_size": 7}
    published = token_function("jsd", {**arguments, "form": "published"})
    assert published.token_advantages(batch).tolist() == near(expected)
    gradient = token_function("jsd", arguments)
    assert gradient.token_advantages(batch).tolist() == near(downhill)


def divergence_of(share: float, teacher: Tensor, student: Tensor) -> Tensor:
    """Agarwal et al. 2024, equation 1; at its ends forward and reverse KL  # [V] log, [V] log"""
    if share == 0:
        return (teacher.exp() * (teacher - student)).sum()
    if share == 1:
        return (student.exp() * (student - teacher)).sum()
    mixture = (share * teacher.exp() + (1 - share) * student.exp()).log()
    forward = (teacher.exp() * (teacher - mixture)).sum()
    return share * forward + (1 - share) * (student.exp() * (student - mixture)).sum()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.9, 1.0])
def test_jsd_leads_to_the_teacher_down_its_divergence(share: float) -> None:
    """Over all tokens, each as often as it is drawn, the advantage's policy gradient is the divergence's."""
    generator = torch.Generator().manual_seed(3)
    teacher = (2 * torch.randn(6, generator=generator, dtype=torch.float64)).log_softmax(0)
    logits = (2 * torch.randn(6, generator=generator, dtype=torch.float64)).requires_grad_()
    function = token_function("jsd", {"lambda_coef": share})
    left = []
    for _ in range(100):
        student = logits.log_softmax(0)
        drawn = {"old_logprobs": [student.tolist()], "teacher_logprobs": [teacher.tolist()]}
        advantages = function.token_advantages(make_batch(drawn, [0.0]))
        (ascent,) = torch.autograd.grad((student.exp().detach() * advantages * student).sum(), logits)
        divergence = divergence_of(share, teacher, logits.log_softmax(0))
        (slope,) = torch.autograd.grad(divergence, logits)
        torch.testing.assert_close(ascent, -slope, rtol=1e-9, atol=1e-12)
        left.append(divergence.item())
        logits = (logits + 0.5 * ascent).detach().requires_grad_()
    assert left == sorted(left, reverse=True)
    assert left[-1] < left[0]


def test_clipb_leaves_out_tokens_that_would_cost_entropy() -> None:
    rng = np.random.default_rng(5)
    logprobs = [-np.abs(rng.normal(1, 1, 20))]
    entropies, advantages = rng.random(20), rng.normal(size=20)
    batch = make_batch({"logprobs": logprobs, "entropies": [entropies], "advantages": [advantages]}, [0.0])  # type: ignore[dict-item, list-item]
    signals = [math.exp(p) * (h + p) for p, h in zip(logprobs[0], entropies, strict=True)]
    bound = statistics.mean(signals) - 0.5 * statistics.stdev(signals)
    expected = [0.0 if a < 0 and s < bound else a for a, s in zip(advantages, signals, strict=True)]
    assert expected.count(0.0) > 1
    function = token_function("clipb", {"mu": 0.5})
    assert function.token_advantages(batch).tolist() == near(expected)
    assert function.needs == {"logprobs", "entropies"}
    assert np.concatenate(function.advantages([ClosedGroup(rewards=np.array([0, 1], np.float32))])).any(), "as grpo"


@pytest.mark.parametrize("max_frac", [0.0, 0.1, 1.0])
def test_clipv_leaves_out_the_farthest_only(max_frac: float) -> None:
    rng = np.random.default_rng(6)
    logprobs, entropies, advantages = -np.abs(rng.normal(1, 1, 20)), rng.random(20), rng.normal(size=20)
    means = rng.normal(0, 0.3, 20)
    rows = {"logprobs": logprobs, "entropies": entropies, "advantages": advantages, "entropy_signals": means}
    batch = make_batch({name: [row.tolist()] for name, row in rows.items()}, [0.0])
    below = [m - math.exp(p) * (h + p) for m, p, h in zip(means, logprobs, entropies, strict=True)]
    far = [i for i in range(20) if below[i] > 0.1 * statistics.stdev(below) and advantages[i] < 0]
    masked = sorted(far, key=lambda i: -below[i])[: int(max_frac * 20)]
    assert len(far) > 2
    expected = [0.0 if i in masked else a for i, a in enumerate(advantages)]
    found = token_function("clipv", {"mu": 0.1, "max_frac": max_frac}).token_advantages(batch)
    assert found.tolist() == near(expected)


@pytest.mark.parametrize(("others", "left_out"), [(49, False), (199, True)])
def test_clipv_leaves_out_what_is_more_than_eight_and_a_half_deviations_off(others: int, left_out: bool) -> None:
    means = [1000.0] + [(-1.0) ** i for i in range(others)]
    deviations = means[0] / statistics.stdev(means)
    assert deviations > 5
    assert (deviations > 8.5) == left_out
    rows = {name: [[0.0] * len(means)] for name in ("logprobs", "entropies")}
    batch = make_batch(rows | {"advantages": [[-1.0] * len(means)], "entropy_signals": [means]}, [0.0])
    found = token_function("clipv", {"max_frac": 1.0}).token_advantages(batch)
    assert (found == 0).tolist() == [left_out] + [False] * others


def test_an_empty_batch_has_no_advantages() -> None:
    batch = make_batch({"values": [[], []], "teacher_logprobs": [[], []]}, [1.0, 1.0])
    for name in ("ppo", "reinforceplusplus", "on_policy_distill", "jsd"):
        assert token_function(name).token_advantages(batch).tolist() == []
