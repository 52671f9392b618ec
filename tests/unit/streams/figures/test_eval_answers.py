"""The answers that an evaluation keeps: all, or a sample that is the same for every version."""

from __future__ import annotations

import zlib

import pytest

from rftd.ops import limits
from rftd.ops.errors import LogCorruptError
from rftd.streams.figures.eval_answers import EvalAnswer, kept_places, packed, unpacked

NAMES = [f"digest/{row}/0" for row in range(1000)]


def test_what_fits_is_kept_whole() -> None:
    assert kept_places([0.0] * 5, NAMES[:5], 5) == [0, 1, 2, 3, 4]


def test_of_many_the_best_the_worst_and_the_same_sample_are_kept() -> None:
    rewards = [0.0] * 1000
    rewards[17] = 1.0
    rewards[400] = -1.0
    before = kept_places(rewards, NAMES, 64)
    assert len(before) == 64
    assert {17, 400} <= set(before)
    rewards[900] = 1.0
    rewards[17] = 0.0
    after = kept_places(rewards, NAMES, 64)
    assert 900 in after
    assert len(set(before) & set(after)) >= 60, "of two versions the same rows can be compared"


def test_one_is_kept_where_there_is_room_for_one() -> None:
    assert kept_places([1.0, 0.0, 1.0], NAMES[:3], 1) == [1]


def test_answers_are_read_as_they_were_written() -> None:
    answers = (EvalAnswer(row=3, reward=0.5, parts={"length": 0.5}, text="\ud7ff é", chars=3, truth="x"),)
    assert unpacked(packed(answers)) == answers


def test_texts_take_less_space_than_they_are_long() -> None:
    answers = [EvalAnswer(row=row, reward=0.0, prompt="What is the sum of all of these?" * 8) for row in range(100)]
    assert len(packed(answers)) < 5000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        packed([EvalAnswer(row=1, reward=0.0)])[:-3],
        b"\xff" * 40,
        zlib.compress(b"\x81\xa7answers\xc0"),
        zlib.compress(bytes(9 * limits.EVAL_ANSWERS_CHARS)),
    ],
)
def test_what_is_no_answers_is_refused(data: bytes) -> None:
    with pytest.raises(LogCorruptError, match="holds no answers"):
        unpacked(data)
