"""Several steps of one rollout as one result."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from rftd.ops.errors import ConfigError, RolloutError
from rftd.streams.events.experience import RunStep, SamplingSpan, Span
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.runner import check_named, check_role, joined


def step(prompt: list[int], response: list[int], *, version: int = 0, **more: object) -> RolloutResult:
    count = len(response)
    fields: dict[str, object] = {
        "tokens": np.array(prompt + response, np.uint32),
        "prompt_tokens": len(prompt),
        "loss_mask": np.ones(count, np.uint8),
        "logprobs": np.arange(count, dtype=np.float32),
        "spans": (Span(version, 0, 0, count),),
        "reward": 0.0,
    }
    return RolloutResult(**fields | more)  # type: ignore[arg-type]


def test_steps_follow_each_other_and_the_last_says_how_it_ended() -> None:
    first = step([1, 2], [3], reward=0.5, step_reward=0.25, state="s", sampling=(SamplingSpan(0, 1, 0.6),))
    drawn = (SamplingSpan(0, 2, 1.4, 0.9, 20),)
    last = step([4], [5, 6], version=2, reward=1.0, finish="length", metrics={"a": 1.0}, text="end", sampling=drawn)
    whole = joined([first, last])
    assert whole.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert whole.prompt_tokens == 3
    assert whole.loss_mask.tolist() == [1, 1, 1]
    assert whole.logprobs.tolist() == [0.0, 0.0, 1.0]
    assert whole.spans == (Span(0, 0, 0, 1), Span(2, 0, 1, 3))
    assert whole.sampling == (SamplingSpan(0, 1, 0.6), SamplingSpan(1, 3, 1.4, 0.9, 20))
    assert whole.steps == (RunStep(3, 2, 0.5, 0.25, "s"), RunStep(3, 1, 1.0, None, ""))
    assert (whole.reward, whole.finish, whole.metrics, whole.text) == (1.0, "length", {"a": 1.0}, "end")


def test_a_single_sequence_stays_what_it_is() -> None:
    only = step([1], [2])
    assert joined([only]) is only
    assert joined([step([1], [2], state="s")]).steps == (RunStep(2, 1, 0.0, None, "s"),)


@pytest.mark.parametrize("wrong", [{"step_reward": math.nan}, {"state": "x" * 257}])
def test_steps_that_cannot_be_kept_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(RolloutError):
        step([1], [2], **wrong).check(8)


def test_each_step_keeps_its_role() -> None:
    assert joined([step([1], [2], role="judge")]).steps == (RunStep(2, 1, 0.0, None, "", "judge"),)
    steps = joined([step([1], [2], role="solver", reward=1.0), step([1], [2], role="proposer", reward=0.5)]).steps
    assert [(each.role, each.reward) for each in steps] == [("solver", 1.0), ("proposer", 0.5)]


def test_a_reward_without_a_number_is_refused_with_its_role() -> None:
    with pytest.raises(RolloutError, match="of role 'proposer', which is not finite"):
        step([1], [2], reward=math.nan, role="proposer").check(8)


def test_roles_are_those_that_the_workflow_declares() -> None:
    class Game:
        roles = ("proposer", "solver")

    check_role("solver", Game())
    check_named(("solver",), Game(), "game")
    with pytest.raises(RolloutError, match="role 'solvr', and declares proposer, solver"):
        check_role("solvr", Game())
    with pytest.raises(RolloutError, match="declares no role"):
        check_role("solver", object())
    with pytest.raises(ConfigError) as refused:
        check_named(("solvr",), Game(), "game")
    assert "did you mean 'solver'?" in str(refused.value)


def test_a_record_with_a_strange_role_is_foreign() -> None:
    encoded = msgspec.msgpack.encode([2, 1, 0.0, None, "", "two words"])
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(encoded, type=RunStep)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode([2, 1, 0.0]), type=RunStep).role == ""
