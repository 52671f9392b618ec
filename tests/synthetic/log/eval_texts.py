"""The texts of an evaluation's answers, as an explorer keeps them, and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from rftd.storage.files.artifacts import ArtifactStore
from rftd.streams.events.step import EvalCompleted
from rftd.streams.figures.eval_answers import EvalAnswer, packed
from rftd.streams.log.arrays import Array


def eval_texts(rewards: Sequence[float], artifacts: ArtifactStore) -> Array:
    """The answers to sums, one for each row, by reference; that to row 1 begins with what a terminal obeys."""
    answers: list[EvalAnswer] = []
    for row, reward in enumerate(rewards):
        colour = "\x1b[31m" if row == 1 else ""
        text = f"{colour}{2 * row if reward else 99}"
        answers.append(
            EvalAnswer(
                row=row,
                reward=reward,
                right=reward == 1,
                parts={"accuracy": reward},
                finish="stop",
                tokens=5 + row,
                prompt=f"{row}+{row}=",
                text=text,
                chars=len(text),
                truth=str(2 * row),
            )
        )
    return Array.of(list(packed(answers)), "u1").stored(artifacts.put)


def eval_completed(eval: UUID, version: int) -> EvalCompleted:
    """The evaluation of four rows of which three are right."""
    intervals = {"score/low": 0.25, "score/high": 1.0, "accuracy/low": 0.3, "accuracy/high": 0.95}
    intervals |= {"score/stderr": 0.25, "accuracy/stderr": 0.25}
    lengths = {"response_length/mean": 6.5, "response_length/right/mean": 6.7, "response_length/wrong/mean": 6.0}
    category = {"category/sums/answers": 4.0, "category/sums/score": 0.75, "category/sums/accuracy": 0.75}
    return EvalCompleted(
        eval=eval,
        stage=1,
        taskset="held_out",
        version=version,
        generation=0,
        rows=4,
        score=0.75,
        metrics={"accuracy/mean": 0.75, "pass@1": 0.75, **intervals, **lengths, **category},
    )
