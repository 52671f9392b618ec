"""Conversations of several turns: what is trained, and whose weights drew what."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from rftd.ops.errors import RolloutError
from rftd.streams.events.experience import SamplingSpan, Span
from rftd.workers.generation.response import Response
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.trajectory import Trajectory

REWARD = RewardResult.of(accuracy=1.0)


def response(prompt: list[int], tokens: list[int], *spans: Span, finish: str = "stop") -> Response:
    return Response(
        text="t",
        prompt=tuple(prompt),
        tokens=tuple(tokens),
        logprobs=tuple(-float(token) for token in tokens),
        spans=spans or (Span(1, 0, 0, len(tokens)),),
        finish=finish,
    )


def test_one_turn_is_the_response() -> None:
    trajectory = Trajectory()
    trajectory.add(response([1, 2], [3, 4]))
    result = trajectory.result(REWARD)
    assert result.tokens.tolist() == [1, 2, 3, 4]
    assert (result.prompt_tokens, result.loss_mask.tolist(), result.logprobs.tolist()) == (2, [1, 1], [-3.0, -4.0])
    assert (result.reward, result.metrics, result.spans) == (1.0, {"accuracy": 1.0}, (Span(1, 0, 0, 2),))


def test_what_was_told_between_turns_is_masked() -> None:
    trajectory = Trajectory()
    trajectory.add(response([1, 2], [3, 4]))
    trajectory.add(response([*trajectory.tokens, 5, 6], [7, 8], Span(1, 0, 0, 1), Span(2, 0, 1, 2)))
    trajectory.add(response([*trajectory.tokens, 9], [10], Span(3, 0, 0, 1), finish="length"))
    result = trajectory.result(REWARD)
    result.check(100)
    assert result.tokens.tolist() == list(range(1, 11))
    assert result.loss_mask.tolist() == [1, 1, 0, 0, 1, 1, 0, 1]
    assert result.logprobs.tolist() == [-3, -4, 0, 0, -7, -8, 0, -10]
    assert result.spans == (Span(1, 0, 0, 5), Span(2, 0, 5, 6), Span(3, 0, 6, 8))
    assert result.finish == "length"


def test_a_conversation_that_outgrew_the_prompt_trains_nothing() -> None:
    trajectory = Trajectory()
    trajectory.add(response([1], [2]))
    trajectory.add(response([1], [0], finish="prompt_truncated"))
    result = trajectory.result(REWARD)
    result.check(100)
    assert (result.tokens.tolist(), result.loss_mask.tolist(), result.reward) == ([1, 2], [0], 0.0)
    assert (result.metrics, result.finish) == ({}, "prompt_truncated")


def test_rewritten_history_is_refused() -> None:
    trajectory = Trajectory()
    trajectory.add(response([1, 2], [3]))
    with pytest.raises(RolloutError, match="does not begin with the tokens of the turns before"):
        trajectory.add(response([1, 2, 4, 5], [6]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_tokens": 0}, "0 prompt tokens of 4"),
        ({"prompt_tokens": 4}, "4 prompt tokens of 4"),
        ({"loss_mask": np.ones(3, np.uint8)}, r"loss_mask of shape \(3,\) for 2"),
        ({"logprobs": np.array([0.0, np.nan], np.float32)}, "log-probability that is not finite"),
        ({"spans": (Span(0, 0, 0, 1),)}, "spans up to 1 for 2"),
        ({"spans": (Span(0, 0, 1, 2),)}, r"a span \[1, 2\) where one from 0"),
        ({"sampling": (SamplingSpan(0, 3, 1.0),)}, r"sampling of \[0, 3\) from 0 on, of 2"),
        ({"sampling": (SamplingSpan(0, 2, 1.0), SamplingSpan(1, 2, 1.0))}, r"sampling of \[1, 2\) from 2 on"),
        ({"reward": float("inf")}, "reward inf"),
        ({"metrics": {"len": float("nan")}}, "len nan"),
        ({"finish": "done"}, "finish 'done'"),
    ],
)
def test_results_that_do_not_fit_together_are_refused(change: dict[str, Any], message: str) -> None:
    trajectory = Trajectory()
    trajectory.add(response([1, 2], [3, 4]))
    good: RolloutResult = trajectory.result(REWARD)
    good.check(4)
    with pytest.raises(RolloutError, match="4 tokens, more than max_model_len 3"):
        good.check(3)
    with pytest.raises(RolloutError, match=message):
        msgspec.structs.replace(good, **change).check(100)


def test_each_turn_has_its_sampling_and_equal_neighbours_are_one() -> None:
    trajectory = Trajectory()
    for temperature in (1.0, 1.0, 0.6):
        asked = response([*trajectory.tokens, 1, 2], [3, 4])
        trajectory.add(msgspec.structs.replace(asked, sampling=(SamplingSpan(0, 2, temperature),)))
    trajectory.add(response([*trajectory.tokens, 1], [2]))
    result = trajectory.result(REWARD)
    result.check(100)
    assert result.sampling == (SamplingSpan(0, 6, 1.0), SamplingSpan(6, 10, 0.6)), "the last turn does not say"


@pytest.mark.parametrize("temperature", [0.0, 0.009])
def test_greedy_text_is_not_trained(temperature: float) -> None:
    trajectory = Trajectory()
    trajectory.add(msgspec.structs.replace(response([1], [2, 3]), sampling=(SamplingSpan(0, 2, 1.0),)))
    greedy = response([*trajectory.tokens, 4], [5, 6])
    trajectory.add(msgspec.structs.replace(greedy, sampling=(SamplingSpan(0, 2, temperature),)))
    result = trajectory.result(REWARD)
    says = f"response token 3, which is trained, .* temperature {temperature:g}"
    with pytest.raises(RolloutError, match=says) as error:
        result.check_trainable()
    assert error.value.fix == "use a temperature from 0.01 to 100 where it is trained, or set its loss_mask to 0"
    msgspec.structs.replace(result, loss_mask=np.array([1, 1, 0, 0, 0], np.uint8)).check_trainable()
