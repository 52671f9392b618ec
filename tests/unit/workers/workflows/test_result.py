"""What a workflow may hand over: each part that does not fit is refused by its name, and nothing that fits is."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rftd.ops import limits
from rftd.ops.errors import NotFoundError, RolloutError, RolloutTimeoutError
from rftd.streams.events.experience import SamplingSpan, Span
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task
from rftd.workers.generation.sampling import COLDEST_TRAINED
from rftd.workers.workflows.result import FINISHES, RolloutResult, named

LENGTH = 16
TASK = Task(taskset="t", row=7, epoch=0, prompt="?", messages=(Message("user", "?"),), truth="", workflow="mine")


def drawn(start: int, end: int, *, temperature: float = 1.0) -> SamplingSpan:
    return SamplingSpan(start=start, end=end, temperature=temperature, top_p=1.0, top_k=-1)


def result(**changes: Any) -> RolloutResult:
    """Two tokens of a prompt and four of a response, of two weight versions, that fit together."""
    fields: dict[str, Any] = {
        "tokens": np.arange(6, dtype=np.uint32),
        "prompt_tokens": 2,
        "loss_mask": np.array([1, 1, 0, 1], np.uint8),
        "logprobs": np.array([-1.0, -2.0, 0.0, -0.5], np.float32),
        "spans": (Span(0, 0, 0, 3), Span(1, 0, 3, 4)),
        "reward": 1.0,
    }
    return RolloutResult(**fields | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"processed_logprobs": np.zeros(4, np.float32)},
        {"reward": -1e30, "priority": 1e30, "metrics": {"length": 3.0}},
        {"step_reward": 0.0, "state": "s" * limits.STATE_CHARS},
        {"sampling": (drawn(0, 2), drawn(2, 4))},
        {"sampling": (drawn(1, 2), drawn(3, 4))},
        {"spans": (Span(0, 0, 0, 4),)},
        *({"finish": finish} for finish in FINISHES),
    ],
)
def test_what_fits_together_is_taken(changes: dict[str, Any]) -> None:
    result(**changes).check(LENGTH)
    result(**changes).check(6)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"prompt_tokens": 0}, "0 prompt tokens of 6 tokens"),
        ({"prompt_tokens": -1}, "-1 prompt tokens of 6 tokens"),
        ({"prompt_tokens": 6}, "6 prompt tokens of 6 tokens"),
        ({"prompt_tokens": 7}, "7 prompt tokens of 6 tokens"),
        ({"tokens": np.zeros(0, np.uint32)}, "2 prompt tokens of 0 tokens"),
        ({"loss_mask": np.ones(3, np.uint8)}, r"loss_mask of shape \(3,\) for 4 response tokens"),
        ({"loss_mask": np.ones((4, 1), np.uint8)}, r"loss_mask of shape \(4, 1\)"),
        ({"logprobs": np.zeros(5, np.float32)}, r"logprobs of shape \(5,\) for 4"),
        ({"processed_logprobs": np.zeros(6, np.float32)}, r"processed_logprobs of shape \(6,\)"),
        ({"logprobs": np.array([0, math.nan, 0, 0], np.float32)}, "log-probability that is not finite"),
        ({"logprobs": np.array([0, 0, 0, -math.inf], np.float32)}, "log-probability that is not finite"),
        ({"logprobs": np.array([math.inf, -math.inf, 0, 0], np.float32)}, "log-probability that is not finite"),
        ({"processed_logprobs": np.array([0, 0, math.nan, 0], np.float32)}, "log-probability that is not finite"),
        ({"spans": ()}, "spans up to 0 for 4 response tokens"),
        ({"spans": (Span(0, 0, 0, 3),)}, "spans up to 3 for 4 response tokens"),
        ({"spans": (Span(0, 0, 0, 5),)}, "spans up to 5 for 4 response tokens"),
        ({"spans": (Span(0, 0, 1, 4),)}, r"a span \[1, 4\) where one from 0 was expected"),
        ({"spans": (Span(0, 0, 0, 2), Span(1, 0, 3, 4))}, r"a span \[3, 4\) where one from 2 was expected"),
        ({"spans": (Span(0, 0, 0, 3), Span(1, 0, 2, 4))}, r"a span \[2, 4\) where one from 3 was expected"),
        ({"spans": (Span(0, 0, 0, 0), Span(1, 0, 0, 4))}, r"a span \[0, 0\)"),
        ({"sampling": (drawn(0, 5),)}, r"sampling of \[0, 5\) from 0 on, of 4"),
        ({"sampling": (drawn(-1, 2),)}, r"sampling of \[-1, 2\)"),
        ({"sampling": (drawn(2, 2),)}, r"sampling of \[2, 2\)"),
        ({"sampling": (drawn(0, 3), drawn(2, 4))}, r"sampling of \[2, 4\) from 3 on"),
        ({"reward": math.nan}, "reward nan, which is not finite"),
        ({"reward": math.inf}, "reward inf, which is not finite"),
        ({"priority": -math.inf}, "priority -inf, which is not finite"),
        ({"metrics": {"length": 1.0, "odd": math.nan}}, "odd nan, which is not finite"),
        ({"step_reward": math.nan}, "step_reward nan"),
        ({"state": "s" * (limits.STATE_CHARS + 1)}, f"a state of {limits.STATE_CHARS + 1} characters.*give its hash"),
        ({"finish": "eos"}, "finish 'eos'; known: stop, length, prompt_truncated"),
        ({"finish": ""}, "finish ''"),
    ],
)
def test_a_part_that_does_not_fit_is_named_for_the_workflows_author(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(RolloutError, match=f"the workflow returned .*{says}") as raised:
        result(**changes).check(LENGTH)
    assert raised.value.fix is not None
    assert "Trajectory" in raised.value.fix


def test_one_token_more_than_the_models_length_is_too_many() -> None:
    result().check(6)
    with pytest.raises(RolloutError, match="6 tokens, more than max_model_len 5"):
        result().check(5)


@settings(deadline=None)
@given(
    cuts=st.lists(st.integers(0, 12), max_size=5).map(sorted),
    response=st.integers(1, 12),
)
def test_spans_are_taken_exactly_if_they_cover_the_response_without_a_gap(cuts: list[int], response: int) -> None:
    edges = [0, *cuts, response]
    spans = tuple(Span(0, 0, start, end) for start, end in pairwise(edges))
    made = result(
        tokens=np.arange(1 + response, dtype=np.uint32),
        prompt_tokens=1,
        loss_mask=np.ones(response, np.uint8),
        logprobs=np.zeros(response, np.float32),
        spans=spans,
    )
    fits = all(start < end for start, end in pairwise(edges))
    if fits:
        made.check(99)
    else:
        with pytest.raises(RolloutError, match="span"):
            made.check(99)


@pytest.mark.parametrize("temperature", [0.0, COLDEST_TRAINED / 2, 101.0])
def test_a_trained_token_that_no_policy_can_be_trained_on_is_named_by_its_place(temperature: float) -> None:
    masked = result(sampling=(drawn(0, 2), drawn(2, 3, temperature=temperature), drawn(3, 4)))
    masked.check_trainable()  # it was drawn for another reason, and is not trained
    for start, end, place in ((0, 2, 0), (2, 4, 3), (3, 4, 3)):
        with pytest.raises(RolloutError, match=f"response token {place}, which is trained") as raised:
            result(sampling=(drawn(start, end, temperature=temperature),)).check_trainable()
        assert raised.value.field == "temperature"
        assert f"temperature {temperature:g}" in raised.value.what


@pytest.mark.parametrize("temperature", [COLDEST_TRAINED, 0.5, 1.0, 100.0])
def test_temperatures_that_can_be_trained_are(temperature: float) -> None:
    result(sampling=(drawn(0, 4, temperature=temperature),)).check_trainable()


def test_an_error_of_a_workflow_is_one_of_its_task_and_row() -> None:
    mine = named(ValueError("x" * 10_000), TASK)
    assert mine.where == "taskset 't' row 7"
    assert mine.what.startswith("workflow 'mine' raised ValueError: xxx")
    assert len(mine.what) < 2 * limits.ERROR_TEXT_CHARS
    assert "correct the workflow" in (mine.fix or "")


def test_an_error_of_ours_keeps_its_words_its_place_and_its_code() -> None:
    late = RolloutTimeoutError("it took too long", fix="raise max_timeout")
    assert named(late, TASK) is late
    assert late.where == "taskset 't' row 7"
    placed = RolloutError("no", where="the judge")
    assert named(placed, TASK).where == "the judge"
    other = named(NotFoundError("no such model", where="/models/x", field="model", fix="copy it"), TASK)
    assert isinstance(other, RolloutError)
    assert (other.what, other.field, other.fix) == ("no such model", "model", "copy it")
    assert other.where == "taskset 't' row 7, /models/x"
    assert named(NotFoundError("no such model"), TASK).where == "taskset 't' row 7"


def test_of_a_group_of_errors_the_first_counts() -> None:
    inner = RolloutError("the first")
    group = ExceptionGroup("several", [ExceptionGroup("of one turn", [inner]), ValueError("the second")])
    assert named(group, TASK) is inner
