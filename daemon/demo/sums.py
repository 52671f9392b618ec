"""The demo's task: a two-digit number plus a one-digit number, 30 % of the 900 sums held out.

The warm-up imitates an unsure pupil: of the four answers to each sum, all are right if the small number is at most 2;
otherwise one is right, two are too large by 1 and one by 2. No amount of SFT, from any seed, does better on most sums,
so further progress is learned from rewards.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

UNSURE_BY: Final = (0, 1, 1, 2)
"""Errors of the four answers to a sum whose second number exceeds 2; one answer is right."""

Row = dict[str, Any]
"""One row of a dataset."""


class SumFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The three datasets; held-out sums appear in neither of the other two."""

    train: Path
    """File of the sums for training."""
    warmup: Path
    """File of the answers for the SFT stage."""
    held_out: Path
    """File of the sums for evaluation."""


def write_sums(folder: Path, *, seed: int, held_out: int = 270) -> SumFiles:
    """Writes the datasets; the split and the order are drawn from `seed`."""
    pairs = [(tens_number, digit) for tens_number in range(10, 100) for digit in range(10)]
    order = np.random.default_rng(seed).permutation(len(pairs))
    mixed = [pairs[index] for index in order]
    train = mixed[held_out:]
    folder.mkdir(parents=True, exist_ok=True)
    return SumFiles(
        train=_write(folder / "train.jsonl", [_question(*pair) for pair in train]),
        warmup=_write(folder / "warmup.jsonl", [answer for pair in train for answer in _unsure_answers(*pair)]),
        held_out=_write(folder / "held_out.jsonl", [_question(*pair) for pair in mixed[:held_out]]),
    )


def _question(first: int, second: int) -> Row:
    """Returns the row of a sum, with the right answer."""
    return {"question": f"{first}+{second}=", "answer": str(first + second)}


def _unsure_answers(first: int, second: int) -> list[Row]:
    """Returns conversations with partly wrong answers to a sum, so that SFT leaves something to learn."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"{first}+{second}="},
                {"role": "assistant", "content": str(first + second + (off if second > 2 else 0))},
            ]
        }
        for off in UNSURE_BY
    ]


def _write(path: Path, rows: Sequence[Row]) -> Path:
    """Writes rows as JSON Lines, and returns the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
