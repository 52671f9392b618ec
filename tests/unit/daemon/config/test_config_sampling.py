"""How answers are drawn, as the experiment file says it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Load = Callable[..., Any]
Errors = Callable[..., list[str]]
ARGS = "buffer.explorer_input.taskset.rollout_args"


def test_greedy_answers_are_not_trained(load: Load, errors: Errors) -> None:
    (text,) = errors(overrides=[f"{ARGS}.temperature=0"])
    assert f"{ARGS}.temperature" in text
    assert "is 0, but the answers of this taskset are trained" in text
    assert "use a temperature from 0.01 to 100" in text
    (text,) = errors(overrides=["model.temperature=0.001", f"{ARGS}.temperature=null"])
    assert "model.temperature" in text
    assert "is 0.001" in text
    collected = load(overrides=[f"{ARGS}.temperature=0", "mode=explore", "explorer.collect_only=true"]).spec.stages[0]
    assert collected.taskset is not None
    assert collected.taskset.sampling.temperature == 0.0


def test_further_settings_are_kept_and_a_trained_taskset_is_warned_of(load: Load) -> None:
    given = (
        "{min_p: 0.1, repetition_penalty: 1.2, presence_penalty: -0.5, logit_bias: {7: -3, 2: 1.5}, ignore_eos: true}"
    )
    made = load(overrides=[f"{ARGS}={given}", "model.repetition_penalty=1.5"]).spec
    sampling = made.stages[0].taskset.sampling
    assert (sampling.min_p, sampling.repetition_penalty, sampling.presence_penalty) == (0.1, 1.2, -0.5)
    assert sampling.logit_bias == ((2, 1.5), (7, -3.0))
    assert sampling.ignore_eos
    says = "samples with min_p 0.1, repetition_penalty 1.2, presence_penalty -0.5, logit_bias/2 1.5, logit_bias/7 -3"
    assert any(says in text for text in made.warnings)
    usual = load(overrides=["model.repetition_penalty=1.5"]).spec
    assert usual.stages[0].taskset.sampling.repetition_penalty == 1.5
    assert not any("samples with" in text for text in load().spec.warnings)


def test_processed_logprobs_are_asked_for_by_name(load: Load, errors: Errors) -> None:
    usual = load(overrides=[f"{ARGS}={{top_p: 0.9, logprobs: 5}}"]).spec
    assert not usual.stages[0].taskset.sampling.processed_logprobs
    assert any("samples with top_p 0.9" in text and "logprobs: processed" in text for text in usual.warnings)
    asked = load(overrides=[f"{ARGS}={{top_p: 0.9, logprobs: Processed}}"]).spec
    assert asked.stages[0].taskset.sampling.processed_logprobs
    assert any("samples with top_p 0.9" in text and "logprobs: processed" not in text for text in asked.warnings)
    (misspelt,) = errors(overrides=[f"{ARGS}.logprobs=procesed"])
    assert "rollout_args.logprobs" in misspelt
    assert "did you mean 'processed'" in misspelt
    for wrong in ("-1", "true", "0.5"):
        assert len(errors(overrides=[f"{ARGS}.logprobs={wrong}"])) == 1


@pytest.mark.parametrize(
    "given",
    [
        "{min_p: 2}",
        "{repetition_penalty: 0}",
        "{presence_penalty: 11}",
        "{logit_bias: {-1: 1}}",
        "{logit_bias: {1: 101}}",
    ],
)
def test_settings_out_of_range_are_refused(errors: Errors, given: str) -> None:
    found = errors(overrides=[f"{ARGS}={given}"])
    assert len(found) == 1
    assert given[1:].split(":")[0] in found[0]
