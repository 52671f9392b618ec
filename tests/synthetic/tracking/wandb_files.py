"""The record files of Weights & Biases: LevelDB's log format, which the library itself reads no more."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from synthetic.tracking.tracked import Shown, as_shown

from rftd.workers.tracking.point import ROLES
from rftd.workers.tracking.points import SAMPLES

_BLOCK: Final = 32 * 1024
_AXES: Final = tuple(f"{role}_step" for role in ROLES)


def records_of(path: Path) -> Iterator[Any]:
    """The records of a `.wandb` file: LevelDB's log format behind a head of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    place = 7
    parts = b""
    while place + 7 <= len(data):
        if _BLOCK - place % _BLOCK < 7:
            place += _BLOCK - place % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def rows_of(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The rows of every run by (role, step): the same one may lie in two files, from before and after a kill."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        last = path.stem.rpartition("-")[2]
        role = last if last in ROLES else ""
        for record in records_of(path):
            if record.WhichOneof("record_type") == "history":
                row = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                known = rows.setdefault((role, row["_step"]), row)
                assert {**known, **untimed(row)} == known
    return rows


def untimed(row: dict[str, Any]) -> dict[str, Any]:
    """The row without what the library adds, without tables, and without figures that equal nothing: no numbers."""
    strange = ("_", f"{SAMPLES}/")
    return {name: value for name, value in row.items() if not name.startswith(strange) and value == value}


def step_and_figures(row: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The step of a row, and its figures, without tables; in one run the library adds the other role's step."""
    strange = ("_", f"{SAMPLES}/", *_AXES)
    figures = {name: value for name, value in row.items() if not name.startswith(strange)}
    of_explorer = any(name.startswith(("eval/", "rollout/")) for name in figures)
    axes = _AXES if of_explorer else tuple(reversed(_AXES))
    return int(next(row[axis] for axis in axes if axis in row)), figures


def shown_in(folder: Path) -> list[Shown]:
    """Every figure below the folder, each row once."""
    shown = []
    for (role, _), row in rows_of(folder).items():
        step, figures = step_and_figures(row)
        shown += [as_shown("wandb", role, step, name, float(value)) for name, value in figures.items()]
    return sorted(shown, key=lambda figure: (figure.run, figure.step, figure.name))
