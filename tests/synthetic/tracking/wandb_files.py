"""The record files of Weights & Biases: LevelDB's log format, which the library itself reads no more."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from synthetic.tracking.tracked import Shown, as_shown

from rftd.workers.tracking.points import SAMPLES

_BLOCK: Final = 32 * 1024


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
        role = path.stem.rpartition("-")[2]
        for record in records_of(path):
            if record.WhichOneof("record_type") == "history":
                row = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                known = rows.setdefault((role, row["_step"]), row)
                assert {**known, **untimed(row)} == known
    return rows


def untimed(row: dict[str, Any]) -> dict[str, Any]:
    """The row without what the library adds, and without figures that are not numbers, which equal nothing."""
    return {name: value for name, value in row.items() if not name.startswith("_") and value == value}


def shown_in(folder: Path) -> list[Shown]:
    """Every figure below the folder, each row once."""
    shown = []
    for (role, _), row in rows_of(folder).items():
        step = int(row[f"{role}_step"])
        strange = ("_", f"{role}_step", f"{SAMPLES}/")
        figures = {name: value for name, value in row.items() if not name.startswith(strange)}
        shown += [as_shown("wandb", role, step, name, float(value)) for name, value in figures.items()]
    return sorted(shown, key=lambda figure: (figure.run, figure.step, figure.name))
