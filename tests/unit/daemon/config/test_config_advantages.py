"""Arguments of advantage functions in an experiment file."""

from __future__ import annotations

from collections.abc import Callable

from rftd.daemon.config.loading import Submission

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]


def test_dapo_whole_and_weighted_parts_of_rewards_are_arguments_of_advantages(load: Load, errors: Errors) -> None:
    whole = "{std_threshold: 0, max_response_tokens: 20, overlong_buffer: 5, mask_truncated: true}"
    dapo = ["algorithm.algorithm_type=dapo", f"algorithm.advantage_fn_args={whole}"]
    assert load(overrides=dapo).spec.stages[0].algorithm.advantage_args["overlong_buffer"] == 5
    (text,) = errors(overrides=[dapo[0], "algorithm.advantage_fn_args={overlong_buffer: 5}"])
    assert "max_response_tokens is missing" in text
    gdpo = ["algorithm.algorithm_type=gdpo", "algorithm.advantage_fn_args={weights: {accuracy: 1, form: 0.2}}"]
    assert load(overrides=gdpo).spec.stages[0].algorithm.advantage_args == {"weights": {"accuracy": 1, "form": 0.2}}
