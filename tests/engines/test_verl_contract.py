"""What every trainer engine promises, of verl on one rank in the process of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rftd.workers.engines.contract.trainer import MODEL_CHECKS, Check, TrainerBench, trained


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TrainerBench]:
    bench = TrainerBench("verl", tmp_path)
    yield bench
    bench.close()


@pytest.mark.parametrize("check", MODEL_CHECKS, ids=lambda check: check.__name__)
def test_verl(check: Check, bench: TrainerBench) -> None:
    check(bench)


def test_a_checkpoint_in_the_middle_is_a_model_of_transformers(bench: TrainerBench, tmp_path: Path) -> None:
    stage = bench.stage()
    engine = bench.opened(stage)
    trained(engine, stage, range(1, 3))
    engine.save(tmp_path, hf=False)
    assert bench.opened(stage, tmp_path / "actor").checksum() == engine.checksum()
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "actor")
    assert (model.dtype, type(model).__name__) == (torch.float32, "Qwen2ForCausalLM")
    assert AutoTokenizer.from_pretrained(tmp_path / "actor").decode([50])
