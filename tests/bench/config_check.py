"""The cost of checking an experiment file: in process, and as the command `rftd config check`, in CPU milliseconds.

The largest example is read, validated and resolved. References in the same run: PyYAML's C parser on the same text, and
an interpreter that imports the libraries without which no file is read (click, msgspec, PyYAML, pydantic).
Run: python -P tests/bench/config_check.py
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import yaml
from figures import median_of, median_ratio, tell
from start_up import cpu_ms

from rftd.daemon.config.loading import load_file
from rftd.workers.devices.host import Host

ROOT = Path(__file__).parents[2]
LIBRARIES = "import click, msgspec, yaml, pydantic; pydantic.BaseModel"
RUNS = 200


def cpu_each_ms(work: Callable[[], object]) -> float:
    """Median CPU time of one call, the first few left out: they build what stays."""
    for _ in range(5):
        work()
    taken = []
    for _ in range(RUNS):
        began = time.process_time_ns()
        work()
        taken.append((time.process_time_ns() - began) / 1e6)
    return statistics.median(taken)


def main() -> None:
    file = max((ROOT / "examples").glob("*.yaml"), key=lambda each: each.stat().st_size)
    text = file.read_text()
    host = Host(name="bench", no_gpu="none is looked for")
    with tempfile.TemporaryDirectory() as folder:
        load_ms = cpu_each_ms(lambda: load_file(file, cwd=Path(folder), host=host))
    parse_ms = cpu_each_ms(lambda: yaml.load(text, Loader=yaml.CSafeLoader))
    command = [str(Path(sys.executable).parent / "rftd"), "config", "check", str(file), "--here"]
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    pairs = [(cpu_ms(command), cpu_ms([sys.executable, "-P", "-c", LIBRARIES])) for _ in range(9)]
    checks, bare = zip(*pairs, strict=True)
    tell(
        {
            "file": file.name,
            "size_bytes": len(text),
            "load_ms": round(load_ms, 2),
            "parse_alone_ms": round(parse_ms, 2),
            "load_ratio": round(load_ms / parse_ms, 1),
            "check_cpu_ms": median_of(checks, 1),
            "libraries_alone_cpu_ms": median_of(bare, 1),
            "check_ratio": median_ratio(checks, bare),
        }
    )


if __name__ == "__main__":
    main()
