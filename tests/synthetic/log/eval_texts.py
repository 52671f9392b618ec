"""The texts of an evaluation's answers, as an explorer keeps them."""

from __future__ import annotations

from collections.abc import Sequence

from rftd.storage.artifacts import ArtifactStore
from rftd.streams.arrays import Array
from rftd.streams.eval_answers import EvalAnswer, packed


def eval_texts(rewards: Sequence[float], artifacts: ArtifactStore) -> Array:
    """The answers to sums, one for each row, by reference; that to row 1 begins with what a terminal obeys."""
    answers: list[EvalAnswer] = []
    for row, reward in enumerate(rewards):
        colour = "\x1b[31m" if row == 1 else ""
        answers.append(
            EvalAnswer(
                row=row,
                reward=reward,
                right=reward == 1,
                parts={"accuracy": reward},
                finish="stop",
                tokens=5 + row,
                prompt=f"{row}+{row}=",
                text=f"{colour}{2 * row if reward else 99}",
                chars=2,
                truth=str(2 * row),
            )
        )
    return Array.of(list(packed(answers)), "u1").stored(artifacts.put)
