"""The history: what is kept, what feedback may say, and rows that never change."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from synthetic.worlds.desk import lease_of

from rftd.ops import limits
from rftd.ops.clock import SystemClock
from rftd.ops.errors import ConflictError, DataError, NotFoundError, UsageError
from rftd.ops.ids import SystemIds
from rftd.storage.files.artifacts import ArtifactStore
from rftd.storage.files.served_history import FILE, copy_whole, difference_of
from rftd.streams.events.experience import ExperienceProduced, RolloutFailed, SamplingSpan, Span
from rftd.streams.events.task import TasksOffered
from rftd.workers.generation.endpoint.call_error import CallError
from rftd.workers.generation.response import Response
from rftd.workers.rollout.serving.conversations import Conversations, result_of
from rftd.workers.rollout.serving.history import Committed, CommittedRun, Feedback, History, KeptAnswer

pytestmark = pytest.mark.anyio
IDS = SystemIds(SystemClock())


def answer(id: str, *, after: KeptAnswer | None = None, temperature: float = 1.0) -> KeptAnswer:
    begun = after.response.prompt + after.response.tokens if after is not None else ()
    response = Response(
        text=id,
        prompt=(*begun, 7, 8),
        tokens=(1, 2, 3),
        logprobs=(-0.5, -0.25, -1.0),
        spans=(Span(4, 0, 0, 3),),
        finish="stop",
        sampling=(SamplingSpan(0, 3, temperature),),
    )
    return KeptAnswer(id=id, key=id.encode(), parent=after.id if after is not None else "", response=response)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path, IDS.new)
    made.record([answer(each) for each in "abcdef"])
    yield made
    made.close()


def test_rows_are_whole_groups_in_the_order_of_their_runs_and_stay(history: History, tmp_path: Path) -> None:
    for number, (id, task) in enumerate((("a", "x"), ("b", "y"), ("c", "x"), ("d", "z"))):
        assert history.judge(Feedback(reward=float(number), answers=(id,), task=task))
    assert history.commit(2) == Committed(runs=2, groups=1, waiting=2, rows=1)
    assert history.commit(2) == Committed(runs=0, groups=0, waiting=2, rows=1)
    history.judge(Feedback(reward=9.0, answers=("e",), task="z"))
    other = History(tmp_path, IDS.new)  # as another process, or this one after it was killed
    assert other.commit(2) == Committed(runs=2, groups=1, waiting=1, rows=2)
    assert [history.run(row, place).reward for row in (0, 1) for place in (0, 1)] == [0.0, 2.0, 3.0, 9.0]
    assert other.run(1, 1).answers == (answer("e"),)
    other.close()
    with pytest.raises(DataError, match="row 2"):
        history.run(2, 0)
    assert history.counts() == {"answers": 6, "judged": 5, "committed": 4}


def test_the_same_feedback_again_changes_nothing_and_other_feedback_is_refused(history: History) -> None:
    given = Feedback(reward=1.0, answers=("a", "b"), task="x", run="1")
    assert history.judge(given)
    assert not history.judge(msgspec.structs.replace(given, answers=("b", "a", "a")))
    assert history.commit(1).runs == 1
    assert not history.judge(given), "committed, and still known"
    for wrong in ({"reward": 2.0}, {"answers": ("a",)}, {"answers": ("c",)}, {"run": "2"}, {"task": ""}):
        with pytest.raises(ConflictError):
            history.judge(msgspec.structs.replace(given, **wrong))
    assert history.judge(Feedback(reward=1.0, answers=("c",)))
    assert not history.judge(Feedback(reward=1.0, answers=("c",)))
    assert history.counts()["judged"] == 2


def test_feedback_that_cannot_be_trained_is_refused_and_nothing_of_it_is_kept(history: History) -> None:
    history.record([answer("greedy", temperature=0.0)])
    with pytest.raises(UsageError, match="greedy"):
        history.judge(Feedback(reward=1.0, answers=("a", "greedy")))
    with pytest.raises(NotFoundError, match="'none'"):
        history.judge(Feedback(reward=1.0, answers=("a", "none")))
    assert history.counts()["judged"] == 0
    assert history.judge(Feedback(reward=1.0, answers=("a",)))


def test_what_is_kept_is_bounded(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SERVED_ANSWERS", 2)
    monkeypatch.setattr(limits, "SERVED_RUNS", 1)
    history.judge(Feedback(reward=1.0, answers=("a",)))
    history.record([answer("g")])
    assert [id for id in "abcdefg" if history.find(id.encode()) is not None] == ["a", "f", "g"]
    with pytest.raises(CallError, match="commit"):
        history.judge(Feedback(reward=1.0, answers=("f",)))
    assert history.commit(1).rows == 1
    assert history.judge(Feedback(reward=1.0, answers=("f",)))
    history.forget(1)
    assert history.find(b"a") is None
    assert history.rows == 1, "its number is never given out again"


def test_answers_of_one_run_that_go_on_from_one_another_are_one_sequence() -> None:
    first = answer("first")
    second = answer("second", after=first)
    apart = answer("apart")
    result = result_of(CommittedRun(0.5, (first, second, apart)), max_model_len=10)
    assert [(step.tokens, step.prompt_tokens, step.reward) for step in result.steps] == [(10, 2, 0.5), (5, 2, 0.5)]
    assert result.loss_mask.tolist() == [1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1]
    alone = result_of(CommittedRun(0.5, (second,)), max_model_len=10)
    assert (alone.prompt_tokens, alone.loss_mask.tolist(), alone.steps) == (7, [1, 1, 1], ())


async def test_branching_run_is_trained_although_its_total_exceeds_the_model_length(tmp_path: Path) -> None:
    history = History(tmp_path, IDS.new)
    first = answer("first")
    second = answer("second", after=first)
    history.record([first, second, answer("branch", after=first)])
    history.judge(Feedback(reward=0.5, answers=("first", "second", "branch")))
    history.commit(1)
    handed_over: list[ExperienceProduced | RolloutFailed] = []

    async def hand_over(events: Sequence[ExperienceProduced | RolloutFailed], _traceparents: object = ()) -> None:
        handed_over.extend(events)

    async def offer(_offered: TasksOffered) -> bool:
        return True

    def of_model(max_model_len: int) -> Conversations:
        artifacts = ArtifactStore(tmp_path)
        return Conversations(
            history, stage=0, max_model_len=max_model_len, artifacts=artifacts, offer=offer, promised=lambda: None
        )

    lease = lease_of(IDS.new(), row=0, rollouts=(0,))
    await of_model(10).run(lease, hand_over)
    await of_model(9).run(lease, hand_over)
    history.close()
    produced, failed = handed_over
    assert isinstance(produced, ExperienceProduced)
    assert [(step.tokens, step.prompt_tokens) for step in produced.steps] == [(10, 2), (10, 7)]
    assert isinstance(failed, RolloutFailed)
    assert "max_model_len 9" in failed.reason


def test_a_file_that_is_no_history_is_named(tmp_path: Path) -> None:
    (tmp_path / "history.db").write_bytes(b"not a database, but something else of some length" * 100)
    with pytest.raises(DataError, match="not a database"):
        History(tmp_path, IDS.new)


def test_an_older_copy_and_another_history_are_told_from_the_one_that_was_promised(tmp_path: Path) -> None:
    history = History(tmp_path / "a", IDS.new)
    history.record([answer(each) for each in "abcd"])
    for id in "ab":
        history.judge(Feedback(reward=1.0, answers=(id,)))
    history.commit(1)
    copy_whole(history.path, tmp_path / "older.db")
    for id in "cd":
        history.judge(Feedback(reward=1.0, answers=(id,)))
    history.commit(1)
    promised = history.offer(0)
    assert promised is not None
    assert promised.rows == 4
    history.check(promised)
    history.forget(3)  # what was learnt from has no answers any more, and still is what was promised
    history.check(promised)
    assert "it has 2 rows, and 4 were promised" in difference_of(tmp_path / "older.db", promised)
    other = History(tmp_path / "b", IDS.new)
    with pytest.raises(DataError, match="is another one"):
        other.check(promised)
    # Rows that went on from the older copy are others, though they have the same numbers.
    (tmp_path / "c").mkdir()
    (tmp_path / "older.db").rename(tmp_path / "c" / FILE)
    forked = History(tmp_path / "c", IDS.new)
    for id in "dc":
        forked.judge(Feedback(reward=1.0, answers=(id,)))
    forked.commit(1)
    with pytest.raises(DataError, match="first 4 rows differ from the promised rows"):
        forked.check(promised)
    for opened in (history, other, forked):
        opened.close()


def test_nothing_is_written_once_another_file_lies_in_its_place(history: History, tmp_path: Path) -> None:
    history.path.rename(tmp_path / "aside.db")
    with pytest.raises(DataError, match="is missing, or another file is in its place"):
        history.judge(Feedback(reward=1.0, answers=("a",)))
    (tmp_path / "aside.db").rename(history.path)
    assert history.judge(Feedback(reward=1.0, answers=("a",)))


@pytest.mark.parametrize("value", ["zeroblob(3)", "'text'", "-1", "1e300"])
def test_rubbish_in_the_chain_is_another_history(history: History, value: str) -> None:
    history.judge(Feedback(reward=1.0, answers=("a",)))
    history.commit(1)
    promised = history.offer(0)
    assert promised is not None
    history.close()
    with closing(sqlite3.connect(history.path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE chain SET digest = {value}")
        assert "is another one" in difference_of(history.path, promised)
        connection.execute("DELETE FROM chain")
        assert "is another one" in difference_of(history.path, promised)
        connection.execute("DROP TABLE chain")
        assert "cannot be read" in difference_of(history.path, promised)
