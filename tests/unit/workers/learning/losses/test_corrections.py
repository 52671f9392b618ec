"""Corrections against loops in float64, against verl's numbers, and what every registered one promises."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rftd.ops.errors import ConfigError
from rftd.streams.spec.stage_parts import CorrectionPart, CorrectionSpec
from rftd.workers.learning.corrections.chain import Chain
from rftd.workers.learning.corrections.correction import Corrected, Mismatch
from rftd.workers.learning.corrections.registry import CORRECTIONS
from rftd.workers.learning.losses.batch_tokens import BatchTokens
from rftd.workers.learning.losses.policy_loss import LossTokens

VERL = json.loads((Path(__file__).parents[4] / "golden" / "losses" / "verl_corrections.json").read_text())
LENGTHS = (3, 1, 6, 4, 1, 5)
Responses = list[list[tuple[float, float, float]]]
"""(proximal, rollout, advantage) of each token."""
Loop = Callable[[Responses], list[list[float]]]
NEEDED: dict[str, dict[str, Any]] = {"k2": {"threshold": 0.05}, "k3": {"threshold": 0.05}}
"""Arguments without a default."""


def make_responses(seed: int, drift: float) -> Responses:
    rng = np.random.default_rng(seed)
    responses = []
    for length in LENGTHS:
        rollout = -np.abs(rng.normal(1.5, 1.0, length)) - 1e-3
        proximal = np.minimum(rollout + rng.normal(0, drift, length), -1e-4)
        advantage = float(rng.normal())
        responses.append([(float(p), float(q), advantage) for p, q in zip(proximal, rollout, strict=True)])
    return responses


def mismatch(responses: Responses) -> Mismatch:
    flat = torch.tensor([token for response in responses for token in response], dtype=torch.float64)
    lengths = [len(response) for response in responses]
    return Mismatch(
        proximal=flat[:, 0],
        rollout=flat[:, 1],
        log_ratio=(flat[:, 0] - flat[:, 1]).clamp(-20, 20),
        advantages=flat[:, 2],
        sequence=torch.tensor(np.repeat(np.arange(len(lengths)), lengths)),
        sequences=len(lengths),
    )


def gap(token: tuple[float, float, float]) -> float:
    return max(-20.0, min(20.0, token[0] - token[1]))


def ratio(response: Sequence[tuple[float, float, float]], level: str, place: int) -> float:
    gaps = [gap(token) for token in response]
    if level == "token":
        return math.exp(gaps[place])
    if level == "sequence":
        return math.exp(max(-20.0, min(20.0, math.fsum(gaps))))
    return math.exp(math.fsum(gaps) / len(gaps))


def weights(level: str, low: float, high: float, *, zero: bool = False) -> Loop:
    def loop(responses: Responses) -> list[list[float]]:
        made = []
        for response in responses:
            found = [ratio(response, level, place) for place in range(len(response))]
            made.append([(w if low <= w <= high else 0.0) if zero else min(max(w, low), high) for w in found])
        return made

    return loop


def within(level: str, low: float, high: float) -> Loop:
    return lambda responses: [
        [float(low <= ratio(response, level, place) <= high) for place in range(len(response))]
        for response in responses
    ]


def divergence(kind: str, level: str, threshold: float) -> Loop:
    def loop(responses: Responses) -> list[list[float]]:
        made = []
        for response in responses:
            each = [gap(t) ** 2 / 2 if kind == "k2" else math.exp(gap(t)) - 1 - gap(t) for t in response]
            over = {"sum": math.fsum(each), "mean": math.fsum(each) / len(each), "max": max(each)}
            made.append([float(over.get(level, value) <= threshold) for value in each])
        return made

    return loop


def kpop(responses: Responses) -> list[list[float]]:
    def kl(p: float, q: float) -> float:
        return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))

    def sure(logprob: float) -> float:
        return min(max(math.exp(logprob), 1e-6), 1 - 1e-6)

    return [
        [float(max(kl(sure(p), sure(q)), kl(sure(q), sure(p))) <= 0.1) for p, q, _ in response]
        for response in responses
    ]


def m2po(threshold: float, *, away: bool = True) -> Loop:
    """Drops one token after the other, the largest first, as the paper has it."""

    def loop(responses: Responses) -> list[list[float]]:
        made = [[1.0] * len(response) for response in responses]
        places = [
            (gap(token) ** 2, row, column)
            for row, response in enumerate(responses)
            for column, token in enumerate(response)
            if not away or token[2] * gap(token) > 0
        ]
        places.sort()
        while places and math.fsum(square for square, _, _ in places) / len(places) > threshold:
            _, row, column = places.pop()
            made[row][column] = 0.0
        return made

    return loop


def opsm(responses: Responses) -> list[list[float]]:
    drifts = [math.fsum(-gap(token) for token in response) / len(response) for response in responses]
    return [
        [float(token[2] >= 0 or drift <= 1e-4) for token in response]
        for response, drift in zip(responses, drifts, strict=True)
    ]


LOOPS: list[tuple[str, dict[str, Any], Loop]] = [
    ("decoupled", {}, weights("token", 0, math.inf)),
    ("decoupled", {"level": "geometric", "cap": 1.5}, weights("geometric", 0, 1.5)),
    ("tis", {}, weights("token", 0, 2)),
    ("tis", {"low": 0.8, "high": 1.1}, weights("token", 0.8, 1.1)),
    ("tis", {"level": "sequence"}, weights("sequence", 0, 2)),
    ("icepop", {}, weights("token", 0.5, 5, zero=True)),
    ("icepop", {"level": "geometric", "low": 0.9, "high": 1.2}, weights("geometric", 0.9, 1.2, zero=True)),
    ("token", {"high": 1.5}, within("token", 1 / 1.5, 1.5)),
    ("sequence", {"low": 0.3, "high": 3.0}, within("sequence", 0.3, 3.0)),
    ("geometric", {}, within("geometric", 1 / 1.01, 1.01)),
    ("geometric", {"high": 1.2}, within("geometric", 1 / 1.2, 1.2)),
    *(
        (kind, {"level": level, "threshold": 0.05}, divergence(kind, level, 0.05))
        for kind in ("k2", "k3")
        for level in ("token", "sum", "mean", "max")
    ),
    ("kpop", {}, kpop),
    ("m2po", {}, m2po(0.04)),
    ("m2po", {"away_only": False, "threshold": 0.01}, m2po(0.01, away=False)),
    ("opsm", {}, opsm),
]


def flat(values: list[list[float]]) -> np.ndarray[Any, Any]:
    return np.array([value for row in values for value in row])


@pytest.mark.parametrize("drift", [0.02, 0.3, 8.0])
@pytest.mark.parametrize(
    ("name", "arguments", "loop"), LOOPS, ids=lambda each: "" if each is None or callable(each) else str(each)
)
def test_each_is_its_loop(name: str, arguments: dict[str, Any], loop: Loop, drift: float) -> None:
    responses = make_responses(5, drift)
    made = CORRECTIONS.open(name, arguments).correct(mismatch(responses))
    found = made.multiplier if made.keep is None else made.keep.double()
    assert found is not None
    np.testing.assert_allclose(found, flat(loop(responses)), rtol=1e-9)


@pytest.mark.parametrize("fixture", VERL["fixtures"], ids=lambda each: each["name"])
def test_each_is_as_verl_has_it(fixture: dict[str, Any]) -> None:
    responses = [
        [
            (now, old, each["advantage"])
            for now, old, mask in zip(each["logprobs"], each["old_logprobs"], each["mask"], strict=True)
            if mask
        ]
        for each in fixture["responses"]
    ]
    for each in fixture["corrections"]:
        made = CORRECTIONS.open(each["kind"], each["arguments"]).correct(mismatch(responses))
        if "multiplier" in each:
            assert made.multiplier is not None
            np.testing.assert_allclose(made.multiplier, each["multiplier"], rtol=1e-5, atol=1e-9)
        else:
            assert made.keep is not None
            assert made.keep.int().tolist() == each["keep"], each


def test_every_correction_has_a_loop() -> None:
    assert {name for name, _, _ in LOOPS} == set(CORRECTIONS.names())


@pytest.mark.parametrize("name", CORRECTIONS.names())
def test_on_policy_nothing_changes(name: str) -> None:
    responses = [[(q, q, advantage) for _, q, advantage in row] for row in make_responses(1, 0.3)]
    made = CORRECTIONS.open(name, NEEDED.get(name)).correct(mismatch(responses))
    assert made.multiplier is None or bool((made.multiplier == 1).all())
    assert made.keep is None or bool(made.keep.all())


@pytest.mark.parametrize("name", CORRECTIONS.names())
@pytest.mark.parametrize("shift", [-700.0, -20.0, 20.0, 700.0])
def test_extremes_are_finite(name: str, shift: float) -> None:
    responses = [[(q + shift, q, advantage) for _, q, advantage in row] for row in make_responses(1, 0.3)]
    made = CORRECTIONS.open(name, NEEDED.get(name)).correct(mismatch(responses))
    assert made.multiplier is None or bool(made.multiplier.isfinite().all())


def chained(*names: str, old: str = "recomputed") -> Chain:
    return Chain.of(
        CorrectionSpec(
            old_logprobs=old, parts=tuple(CorrectionPart(kind=name, args=NEEDED.get(name, {})) for name in names)
        )
    )


def tokens_of(responses: Responses, *, expert: Sequence[int] = (), ages: Sequence[int] = ()) -> LossTokens:
    seen = mismatch(responses)
    marked = torch.zeros(len(seen.sequence), dtype=torch.bool)
    for number in expert:
        marked |= seen.sequence == number
    return LossTokens(
        logprobs=seen.proximal.clone().requires_grad_(),
        entropies=torch.zeros_like(seen.proximal),
        old_logprobs=seen.rollout,
        ref_logprobs=None,
        advantages=seen.advantages,
        expert=marked,
        sequence=seen.sequence,
        sequences=seen.sequences,
        versions=10 - torch.tensor(ages) if len(ages) else None,
        version=10,
    )


def test_multipliers_are_multiplied_and_masks_must_agree() -> None:
    responses = make_responses(3, 0.3)
    made = chained("tis", "icepop", "token", "opsm").applied(tokens_of(responses))
    assert made.multiplier is not None
    assert made.keep is not None
    product = flat(weights("token", 0, 2)(responses)) * flat(weights("token", 0.5, 2, zero=True)(responses))
    np.testing.assert_allclose(made.multiplier, product)
    both = flat(within("token", 0.5, 2)(responses)) * flat(opsm(responses))
    assert made.keep.tolist() == (both > 0).tolist()
    assert 0 < both.sum() < len(both)
    assert not made.multiplier.requires_grad
    assert not made.old_logprobs.requires_grad


def test_rows_of_a_dataset_are_not_corrected() -> None:
    responses = make_responses(3, 3.0)
    tokens = tokens_of(responses, expert=(2,))
    made = chained("tis", "token").applied(tokens)
    assert made.multiplier is not None
    assert made.keep is not None
    assert bool(made.keep[tokens.expert].all())
    assert bool((made.multiplier[tokens.expert] == 1).all())
    assert not bool(made.keep.all())


def test_approximated_logprobs_lie_between_by_age() -> None:
    responses = make_responses(3, 0.3)
    ages = [number % 4 for number in range(sum(LENGTHS))]
    made = chained("decoupled", old="approximated").applied(tokens_of(responses, ages=ages))
    assert made.multiplier is not None
    for place, ((now, drawn, _), age) in enumerate(zip((t for row in responses for t in row), ages, strict=True)):
        share = age / (age + 1)
        assert float(made.old_logprobs[place]) == pytest.approx(drawn + share * (now - drawn))
        assert float(made.multiplier[place]) == pytest.approx(math.exp(share * (now - drawn)))


def test_with_the_rollouts_as_old_ones_masks_see_the_present_weights() -> None:
    responses = make_responses(3, 0.3)
    tokens = tokens_of(responses)
    made = chained("token", old="rollout").applied(tokens)
    assert made.keep is not None
    assert torch.equal(made.old_logprobs, tokens.old_logprobs)
    assert made.keep.tolist() == (flat(within("token", 0.5, 2)(responses)) > 0).tolist()
    plain = chained(old="rollout")
    assert plain.plain
    assert plain.applied(tokens) is tokens
    with pytest.raises(ConfigError, match="twice"):
        chained("tis", old="rollout")


@pytest.mark.parametrize("name", CORRECTIONS.names())
def test_the_order_of_responses_and_what_is_beside_them_change_nothing(name: str) -> None:
    """Whatever a micro-batch holds; of those that need a whole mini-batch or batch, only the order."""
    responses = make_responses(7, 0.3)
    correction = CORRECTIONS.open(name, NEEDED.get(name))

    def made(rows: Responses) -> list[list[float]]:
        given = correction.correct(mismatch(rows))
        values = given.multiplier if given.keep is None else given.keep.double()
        assert values is not None
        return [part.tolist() for part in values.split([len(row) for row in rows])]

    whole, order = made(responses), [3, 0, 5, 1, 4, 2]
    for place, row in zip(order, made([responses[number] for number in order]), strict=True):
        assert row == pytest.approx(whole[place])
    if correction.scope == "response":
        assert [made([response])[0] for response in responses] == [pytest.approx(row) for row in whole]


def test_a_mini_batch_gives_its_masks_before_the_step() -> None:
    responses = make_responses(7, 0.3)
    chain, tokens = chained("m2po", "tis"), tokens_of(responses)
    assert chain.whole_mini_batch
    assert not chain.whole_batch
    batch = BatchTokens(
        old_logprobs=tokens.old_logprobs,
        advantages=tokens.advantages,
        rewards=torch.zeros(len(LENGTHS)),
        expert=tokens.expert,
        sequence=tokens.sequence,
        sequences=tokens.sequences,
        logprobs=tokens.logprobs.detach(),
    )
    made = chain.of_mini_batch(batch, Corrected())
    assert made.multiplier is None
    assert made.keep is not None
    assert made.keep.tolist() == (flat(m2po(0.04)(responses)) > 0).tolist()
    known = Corrected(keep=~made.keep, multiplier=torch.full_like(tokens.old_logprobs, 2.0))
    both = chain.of_mini_batch(batch, known)
    assert both.keep is not None, "what is masked already stays so"
    assert not both.keep.any(), "what is masked already stays so"
    assert both.multiplier is known.multiplier
    applied = chain.applied(replace(tokens, keep=made.keep))
    assert applied.keep is not None
    assert torch.equal(applied.keep, made.keep)
    assert applied.multiplier is not None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("tis", {"high": 0.5}),
        ("tis", {"level": "batch"}),
        ("icepop", {"low": 1.5}),
        ("k2", {}),
        ("k3", {"threshold": -1.0}),
        ("k2", {"threshold": 1.0, "level": "all"}),
        ("kpop", {"threshold": math.nan}),
        ("opsm", {"delta": 0.0}),
        ("tiss", {}),
    ],
)
def test_arguments_that_make_no_sense_are_refused(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CORRECTIONS.open(name, arguments)
