"""`bypass_old_logprobs` and `rollout_correction`: verl's spelling and ours."""

from __future__ import annotations

from typing import Any

import pytest

from rftd.ops.errors import ConfigError
from rftd.streams.spec.stage_parts import CorrectionPart, CorrectionSpec
from rftd.workers.learning.corrections.registry import CORRECTIONS

SECTION = "algorithm.rollout_correction"


def part(kind: str, **args: Any) -> CorrectionPart:
    return CorrectionPart(kind=kind, args=args)


@pytest.mark.parametrize(
    ("overrides", "old", "parts"),
    [
        ([], "rollout", ()),
        (["algorithm.bypass_old_logprobs=false"], "recomputed", ()),
        ([f"{SECTION}={{rollout_is: null}}"], "recomputed", ()),
        ([f"{SECTION}={{bypass_mode: true}}"], "rollout", ()),
        ([f"{SECTION}={{old_logprobs: approximated}}", "algorithm.bypass_old_logprobs=true"], "approximated", ()),
        ([f"{SECTION}={{rollout_is: token}}"], "recomputed", (part("tis", level="token", high=2.0),)),
        (
            [f"{SECTION}={{rollout_is: sequence, rollout_is_threshold: 0.5_5.0, rollout_is_batch_normalize: true}}"],
            "recomputed",
            (part("icepop", level="sequence", high=5.0, low=0.5, batch_normalize=True),),
        ),
        (
            [
                f"{SECTION}={{bypass_mode: true, loss_type: reinforce, rollout_is: token, "
                "rollout_rs: 'seq_mean_k1,seq_max_k2,token_k3', rollout_rs_threshold: '0.99_1.01,2.5,3'}"
            ],
            "recomputed",
            (
                part("tis", level="token", high=2.0),
                part("geometric", high=1.01, low=0.99),
                part("k2", threshold=2.5, level="max"),
                part("k3", threshold=3.0, level="token"),
            ),
        ),
        (
            [f"{SECTION}={{rollout_rs: seq_sum_k1, rollout_rs_threshold: 2, corrections: [{{kind: m2po}}]}}"],
            "recomputed",
            (part("sequence", high=2.0), part("m2po", threshold=0.04, away_only=True)),
        ),
    ],
)
def test_what_a_section_means(load: Any, overrides: list[str], old: str, parts: tuple[CorrectionPart, ...]) -> None:
    (stage,) = load(overrides=overrides).spec.stages
    assert stage.algorithm.correction == CorrectionSpec(old_logprobs=old, parts=parts)


@pytest.mark.parametrize("kind", CORRECTIONS.names())
def test_defaults_of_the_file_are_those_of_the_correction(load: Any, kind: str) -> None:
    try:
        own = CORRECTIONS.open(kind, {})
    except ConfigError:
        pytest.skip("has no default")
    (stage,) = load(overrides=[f"{SECTION}={{corrections: [{{kind: {kind}}}]}}"]).spec.stages
    (written,) = stage.algorithm.correction.parts
    assert CORRECTIONS.open(kind, written.args) == own


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("{corrections: [{kind: tiss}]}", ("corrections[0].kind", "no correction 'tiss'", "did you mean 'tis'")),
        ("{corrections: [{high: 2.0}]}", ("corrections[0].kind", "is required")),
        ("{corrections: [{kind: tis, hihg: 2.0}]}", ("corrections[0].hihg", "did you mean 'high'")),
        ("{corrections: [{kind: tis, high: 0.5}]}", ("corrections[0].high", "greater than or equal to 1")),
        ("{corrections: [{kind: decoupled, cap: 0.5}]}", ("corrections[0].cap", "greater than or equal to 1")),
        ("{corrections: [{kind: k2, threshold: 0}]}", ("corrections[0].threshold", "greater than 0")),
        ("{corrections: [{kind: k3}]}", ("corrections[0].threshold", "is required")),
        ("{corrections: [{kind: icepop, level: tokn}]}", ("corrections[0].level", "'token'")),
        ("{corrections: [{kind: plugin, name: theirs}]}", ("corrections[0].name", "unknown correction 'theirs'")),
        ("{bypass_mode: true, rollout_is: token}", ("rollout_correction", "count it twice", "recomputed")),
        ("{rollout_is: token, rollout_is_threshold: a_b}", ("rollout_is_threshold", "neither a number nor low_high")),
        ("{rollout_rs: token_k4, rollout_rs_threshold: 1}", ("rollout_rs", "no criterion 'token_k4'")),
        ("{rollout_rs: token_k2}", ("rollout_rs_threshold", "has 0 thresholds for 1 criteria")),
        (
            "{rollout_rs: token_k2, rollout_rs_threshold: 0.5_2.0}",
            ("rollout_rs_threshold", "not a valid threshold of token_k2"),
        ),
    ],
)
def test_what_makes_no_sense_is_named(errors: Any, section: str, says: tuple[str, ...]) -> None:
    (text,) = errors(overrides=[f"{SECTION}={section}"])
    assert all(each in text for each in says), text


def test_a_penalty_and_its_arguments(load: Any) -> None:
    overrides = ["algorithm.kl_penalty_fn=k3", "algorithm.kl_penalty_fn_args={kl_coef: 0.01}"]
    (stage,) = load(overrides=overrides).spec.stages
    assert (stage.algorithm.kl_penalty, stage.algorithm.kl_penalty_args) == ("k3", {"kl_coef": 0.01})
    assert load(overrides=["trainer.max_nonfinite_steps=7"]).spec.stages[0].trainer.max_nonfinite_steps == 7


def test_where_a_kl_penalty_is_taken_from(load: Any, errors: Any) -> None:
    given = "algorithm.kl_penalty_fn=k1"
    before = "algorithm.kl_penalty_place=before"
    assert load(overrides=[given]).spec.stages[0].algorithm.kl_penalty_place == "after"
    assert load(overrides=[given, before]).spec.stages[0].algorithm.kl_penalty_place == "before"
    (text,) = errors(overrides=[before])
    assert "algorithm.kl_penalty_place" in text
    assert "there is no KL penalty" in text
    (text,) = errors(overrides=[given, before, "algorithm.advantage_fn=reinforceplusplus"])
    assert "algorithm.kl_penalty_place" in text
    assert "tells tokens apart" in text
    (text,) = errors(overrides=[given, before, "algorithm.advantage_fn=opo"])
    assert "more than the rewards" in text
