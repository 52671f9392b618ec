"""A large file as a taskset, Parquet or JSON Lines: opened, opened again, and rows of it in any order; prints JSON.

python -P tests/bench/parquet_rows.py [--rows 10000000] [--reads 3000] [--lines]

Each opening is a process of its own. `added_mib` is the largest resident size beyond that of the process after its
imports, mapped pages included. It fails if the second opening of Parquet breaks a bar: 2 s and 200 MB.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

sys.path.insert(0, str(Path(__file__).parent))

from figures import forget_peak, memory_bytes, read_options, tell

from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import TasksetSpec
from rftd.streams.spec.stage_tasks import locate
from rftd.workers.datasets.table_copies import experiment_copies
from rftd.workers.datasets.taskset import Taskset

BAR_S: Final = 2.0
BAR_MIB: Final = 200e6 / 2**20
WRITTEN_ROWS: Final = 100_000


def write(path: Path, rows: int) -> None:
    """Writes questions with their answers."""
    schema = pa.schema([("question", pa.string()), ("answer", pa.string()), ("level", pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, rows, WRITTEN_ROWS):
            numbers = range(first, min(first + WRITTEN_ROWS, rows))
            questions = [f"What is {number} and {number}?" for number in numbers]
            answers = [str(2 * number) for number in numbers]
            writer.write_table(
                pa.table({"question": questions, "answer": answers, "level": list(numbers)}, schema=schema)
            )


def write_lines(path: Path, rows: int) -> None:
    """Writes the same questions as JSON Lines."""
    with path.open("w") as file:
        for number in range(rows):
            line = f'"question": "What is {number} and {number}?", "answer": "{2 * number}", "level": {number}'
            file.write("{" + line + "}\n")


def opened(folder: Path, name: str, reads: int) -> dict[str, Any]:
    """Opens the file, reads rows in the order of a shuffled epoch, and counts time and memory."""
    form = Format(prompt_key="question", response_key="answer")
    spec = TasksetSpec(name="t", path=str(folder / name), format=form)
    # A new process begins with the peak of the one that started it.
    forget_peak()
    before_bytes = memory_bytes("VmHWM")
    began_s = time.perf_counter()
    with Taskset.open(spec, experiment_copies(str(folder), structlog.get_logger())) as taskset:
        opened_s = time.perf_counter() - began_s
        locate(0, rows=len(taskset), selector="shuffle", seed=1)
        chance = random.Random(1)
        began_s = time.perf_counter()
        for _ in range(reads):
            taskset.task(chance.randrange(len(taskset)))
        reads_s = time.perf_counter() - began_s
    added_kib = (memory_bytes("VmHWM") - before_bytes) >> 10
    return {"opened_s": round(opened_s, 3), "reads_s": round(reads_s, 2), "added_mib": round(added_kib / 1024)}


def main() -> None:
    chosen = read_options(
        __doc__,
        rows=10**7,
        reads=3000,
        lines=(False, "JSON Lines instead of Parquet"),
        folder=(Path, argparse.SUPPRESS),
    )
    name = "train.jsonl" if chosen.lines else "train.parquet"
    if chosen.folder is not None:
        sys.stdout.write(json.dumps(opened(chosen.folder, name, chosen.reads)) + "\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        (write_lines if chosen.lines else write)(Path(folder) / name, chosen.rows)
        command = [sys.executable, "-P", __file__, "--folder", folder, "--reads", str(chosen.reads)]
        command += ["--lines"] if chosen.lines else []
        openings = [
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
            for _ in range(2)
        ]
        size_mb = round((Path(folder) / name).stat().st_size / 1e6)
    first = openings[0]
    again = openings[1]
    tell({"file": name, "size_mb": size_mb, "rows": chosen.rows, "reads": chosen.reads, "first": first, "again": again})
    if chosen.lines:
        return
    if again["opened_s"] > BAR_S or again["added_mib"] > BAR_MIB:
        raise SystemExit("the file is opened again too slowly, or takes too much memory")


if __name__ == "__main__":
    main()
