"""Files of rows as the library `datasets` writes them, in each format that is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa

WRITERS: dict[str, Callable[[datasets.Dataset, Path], object]] = {
    "parquet": lambda rows, path: rows.to_parquet(path),
    "jsonl": lambda rows, path: rows.to_json(path),
    "json": lambda rows, path: rows.to_json(path, lines=False, batch_size=len(rows)),
    "csv": lambda rows, path: rows.to_csv(path),
    "arrow": lambda rows, path: write_arrow(path, rows.data.table, pa.ipc.new_file),
}
"""What writes a dataset to a path, by the ending of the file."""


def write_arrow(path: Path, table: pa.Table, new: Callable[..., Any]) -> None:
    with path.open("wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table)
