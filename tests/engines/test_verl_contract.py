"""What every trainer engine promises, of verl on one rank in the process of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rftd.workers.training.engines.contract import MODEL_CHECKS, Check, TrainerBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TrainerBench]:
    bench = TrainerBench("verl", tmp_path)
    yield bench
    bench.close()


@pytest.mark.parametrize("check", MODEL_CHECKS, ids=lambda check: check.__name__)
def test_verl(check: Check, bench: TrainerBench) -> None:
    check(bench)
