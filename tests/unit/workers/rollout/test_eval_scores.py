"""Held-out rows as they are scored: what is right, what agrees, which texts are kept, and what a full disk costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec
import numpy as np
import pytest
from synthetic.worlds.rollout_bench import EVAL, SIZE, SPEC, WEIGHTS, Bench, Fated, Rows, eval_lease

from rftd.ops import limits
from rftd.ops.errors import RolloutError
from rftd.ops.ids import derive
from rftd.streams.events.experience import EvalScored, Span
from rftd.streams.figures.eval_answers import EvalAnswer, unpacked
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import Task, make_task
from rftd.workers.rollout.eval_scores import ScoredRows, response_text, right_answers, votes_of
from rftd.workers.workflows.result import RolloutResult


class Categories(Rows):
    """Rows of two categories by turns."""

    def task(self, row: int, epoch: int = 0) -> Task:
        record = {"prompt": "6*7=", "response": "42", "kind": ["even", "odd"][row % 2]}
        return make_task(record, spec=self.spec, row=row, epoch=epoch)


def result(reward: float = 0.0, **changes: Any) -> RolloutResult:
    """An answer of two tokens to a prompt of one."""
    fields: dict[str, Any] = {
        "tokens": np.array([1, 2, 3], dtype="u4"),
        "prompt_tokens": 1,
        "loss_mask": np.ones(2, dtype="u1"),
        "logprobs": np.zeros(2, dtype="f4"),
        "spans": (Span(0, 0, 0, 2),),
        "reward": reward,
    }
    return RolloutResult(**fields | changes)


def categorised(**changes: Any) -> TasksetSpec:
    form = msgspec.structs.replace(SPEC.format, category_key="kind")
    return msgspec.structs.replace(SPEC, format=form, **changes)


async def scored(bench: Bench, rows: Rows | None = None) -> tuple[EvalScored, tuple[EvalAnswer, ...]]:
    event = await bench.evaluator.score(eval_lease(), bench.stage(), cast(Any, rows or Rows(bench.spec)), WEIGHTS)
    assert event.answers is not None
    return event, unpacked(event.answers.loaded(bench.artifacts.read).data)


def test_a_named_part_says_what_is_right() -> None:
    some = [result(1.1, metrics={"accuracy": 1.0}), result(0.9, metrics={"accuracy": 0.0}), RolloutError("no")]
    assert right_answers(some) == [True, False, False]


def test_without_such_a_part_a_reward_of_one_is_right() -> None:
    assert right_answers([result(1.0), result(0.99, metrics={"style": 1.0})]) == [True, False]


def test_rewards_beyond_one_are_no_share_of_right_answers() -> None:
    assert right_answers([result(5.0), result(1.0)]) is None


def test_answers_agree_by_value() -> None:
    said = [r"\boxed{12}", "so it is 12.0", None, "#### 13\n", None, "<answer>12</answer>"]
    assert votes_of(said) == [0, 0, 2, 3, 4, 0]


def test_a_rollout_of_several_steps_is_read_whole() -> None:
    from rftd.streams.events.experience import RunStep

    tokens = np.frombuffer(b"aXXbYY", dtype="u1").astype("u4")
    steps = (RunStep(3, 1, 0.0), RunStep(3, 1, 1.0))
    assert response_text(result(1.0, tokens=tokens, steps=steps, turns=2), ByteTokenizer()) == "XX\nYY"
    several = result(1.0, tokens=tokens, turns=2)
    assert response_text(several, ByteTokenizer()) == "XXbYY"


@pytest.mark.anyio
async def test_each_answer_is_kept_with_its_scores(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Fated(), spec=categorised())
    event, answers = await scored(bench, Categories(bench.spec))
    assert [(answer.row, answer.attempt) for answer in answers] == [(row, 0) for row in range(SIZE)]
    assert [answer.reward for answer in answers] == event.rewards.view().tolist()
    assert {(answer.prompt, answer.truth, answer.finish, answer.chars) for answer in answers} == {
        ("6*7=", "42", "length", 2)
    }
    assert all(len(answer.text) == 2 and answer.parts == {"accuracy": answer.reward} for answer in answers)
    assert [answer.category for answer in answers] == ["even", "odd"] * 2
    assert event.right is not None
    assert {name: score.answers for name, score in event.categories.items()} == {"even": 2, "odd": 2}


@pytest.mark.anyio
async def test_a_failed_row_keeps_its_reason(tmp_path: Path) -> None:
    failing = derive(derive(EVAL, "row", 1), "request", 0)
    bench = Bench(tmp_path, Fated(of={failing: ["error"] * 9}), max_retry_times=0)
    event, answers = await scored(bench)
    assert event.metrics == {"failed_rows": 1.0}
    assert "no room" in answers[1].error
    assert (answers[1].text, answers[1].reward, answers[1].right) == ("", 0.0, False)


@pytest.mark.anyio
async def test_several_answers_to_a_row_differ_and_the_first_is_the_same(tmp_path: Path) -> None:
    single, _ = await scored(Bench(tmp_path / "one", Fated()))
    bench = Bench(tmp_path, Fated(), spec=msgspec.structs.replace(SPEC, repeat_times=3))
    event, answers = await scored(bench)
    assert (event.tries, event.rows, len(event.rewards)) == (3, SIZE, 3 * SIZE)
    assert [(answer.row, answer.attempt) for answer in answers[:4]] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert len({answer.text for answer in answers}) > SIZE
    assert event.votes is not None
    for row in range(SIZE):
        texts = [answer.text for answer in answers if answer.row == row]
        votes = event.votes.view().tolist()[3 * row : 3 * row + 3]
        assert votes == [texts.index(text) for text in texts]
    assert event.rewards.view().tolist()[::3] == single.rewards.view().tolist()


@pytest.mark.anyio
async def test_of_many_answers_a_share_is_kept_and_long_texts_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EVAL_ANSWERS", 2)
    monkeypatch.setattr(limits, "EVAL_ANSWER_CHARS", 1)
    _, answers = await scored(Bench(tmp_path, Fated()))
    assert len(answers) == 2
    assert {(len(answer.text), answer.chars, len(answer.prompt)) for answer in answers} == {(1, 2, 1)}


@pytest.mark.anyio
async def test_a_full_disk_costs_the_texts_and_not_the_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, Fated())

    def full(_data: bytes) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bench.artifacts, "put", full)
    event = await bench.evaluator.score(eval_lease(), bench.stage(), cast(Any, Rows()), WEIGHTS)
    assert event.answers is None
    assert event.rows == SIZE
    assert "No space left" in bench.warnings.said["eval.answers_lost"]["why"]


@pytest.mark.parametrize("build", [lambda: result(1.0), lambda: RolloutError("no")])
def test_scores_hold_no_texts(build: Callable[[], Any]) -> None:
    rows = ScoredRows(eval_lease(1), cast(Any, Rows()), [build()], tries=1, tokenizer=ByteTokenizer())
    event = rows.scores(WEIGHTS)
    assert event.answers is None
    assert event.eval == EVAL != UUID(int=0)
