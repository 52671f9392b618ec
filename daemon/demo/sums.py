"""The demo's task: a two-digit number plus a one-digit number, 30 % of the 900 sums held out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np


class SumFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The three datasets; held-out sums appear in neither of the others."""

    train: Path
    warmup: Path
    held_out: Path


def write_sums(folder: Path, *, seed: int, held_out: int = 270) -> SumFiles:
    """Writes the datasets; the split and the order are drawn from `seed`."""
    pairs = [(left, right) for left in range(10, 100) for right in range(10)]
    order = np.random.default_rng(seed).permutation(len(pairs))
    mixed = [pairs[place] for place in order]
    folder.mkdir(parents=True, exist_ok=True)
    return SumFiles(
        train=_write(folder / "train.jsonl", mixed[held_out:]),
        warmup=_write(folder / "warmup.jsonl", mixed[held_out:][::-1]),
        held_out=_write(folder / "held_out.jsonl", mixed[:held_out]),
    )


def _write(path: Path, pairs: Sequence[tuple[int, int]]) -> Path:
    rows = [{"question": f"{left}+{right}=", "answer": str(left + right)} for left, right in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
