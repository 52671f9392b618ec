"""The record files of SwanLab, by the reader of `swanlab sync`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from synthetic.tracking.tracked import Shown, as_shown


def records_of(path: Path) -> Iterator[Any]:
    """The records of one file."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    reader = DataStoreReader()
    reader.open(path)
    for data in reader:
        record = Record()
        record.ParseFromString(data)
        yield record


def shown_in(folder: Path) -> list[Shown]:
    """Every figure below the folder by run id, name and step: the same one may lie in two files of one run."""
    shown: dict[tuple[str, int, str], Shown] = {}
    for path in sorted(folder.glob("run-*/run-*.swanlab")):
        role = ""
        for record in records_of(path):
            kind = record.WhichOneof("record_type")
            if kind == "start":
                role = record.start.job_type
            if kind == "scalar":
                scalar = record.scalar
                figure = as_shown("swanlab", role, scalar.step, scalar.key, scalar.value.number)
                assert shown.setdefault((role, scalar.step, scalar.key), figure) == figure
    return sorted(shown.values(), key=lambda figure: (figure.run, figure.step, figure.name))
