"""What every trainer engine promises: ours run the checks that third parties' tests run too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rftd.streams.spec.spec import LoraSpec
from rftd.workers.engines.contract.trainer import CHECKS, MODEL_CHECKS, Check, TrainerBench, trained


@pytest.fixture
def fake_bench(tmp_path: Path) -> Iterator[TrainerBench]:
    bench = TrainerBench("fake", tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def torch_bench(tmp_path: Path, torch_device: str) -> Iterator[TrainerBench]:
    bench = TrainerBench("torch", tmp_path, arguments={"device": torch_device})
    yield bench
    bench.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_fake(check: Check, fake_bench: TrainerBench) -> None:
    check(fake_bench)


@pytest.mark.parametrize("check", MODEL_CHECKS, ids=lambda check: check.__name__)
def test_torch(check: Check, torch_bench: TrainerBench) -> None:
    check(torch_bench)


def test_torch_is_deterministic(torch_bench: TrainerBench, torch_device: str) -> None:
    engine = torch_bench.opened(torch_bench.stage())
    assert engine.deterministic == (torch_device == "cpu")
    found = engine.environment()
    assert {"torch", "transformers", "threads", "device", "cpu_capability"} <= found.keys()
    assert found["device"] == torch_device
    assert found["deterministic_algorithms"] == "true"


@pytest.mark.slow
def test_two_processes_make_equal_weights(torch_bench: TrainerBench, torch_device: str, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from rftd.workers.engines.contract.trainer import TrainerBench, trained\n"
        "arguments = {'device': sys.argv[3]}\n"
        "bench = TrainerBench('torch', Path(sys.argv[1]), model=Path(sys.argv[2]), arguments=arguments)\n"
        "stage = bench.stage()\n"
        "print(trained(bench.opened(stage), stage, range(1, 5))[-1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, str(tmp_path / "other"), str(torch_bench.model), torch_device],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    stage = torch_bench.stage()
    assert done.stdout.split()[-1] == trained(torch_bench.opened(stage), stage, range(1, 5))[-1]


def test_a_checkpoint_in_the_middle_of_a_stage_is_a_model_of_transformers(
    torch_bench: TrainerBench, tmp_path: Path
) -> None:
    """In its own dtype, with its tokenizer; and so is an adapter, whose folder names the base."""
    stage = torch_bench.stage()
    adapted = msgspec.structs.replace(
        stage, model=msgspec.structs.replace(stage.model, lora=LoraSpec(rank=4, alpha=8.0))
    )
    config = torch_bench.model / "config.json"
    config.write_text(config.read_text().replace('"float32"', '"bfloat16"'))  # as most published models say
    for name, each, place in (("whole", stage, "actor"), ("adapter", adapted, "actor/lora_adapter")):
        engine = torch_bench.opened(each)
        trained(engine, each, range(1, 3))
        engine.save(tmp_path / name, hf=False)
        folder = tmp_path / name / place
        policy: Any = AutoModelForCausalLM.from_pretrained(folder)
        assert AutoTokenizer.from_pretrained(folder).decode([50])
        weights = {key.replace(".base_layer", ""): value for key, value in policy.named_parameters()}
        published = engine.snapshot().weights()
        if name == "whole":
            assert policy.dtype == torch.float32
            assert published.keys() == weights.keys()
            for key, tensor in published.items():
                assert bytes(tensor.data) == weights[key].detach().numpy().tobytes(), key
        else:
            assert len(weights) > len(published)


def test_grpo_prefers_what_was_rewarded(torch_bench: TrainerBench, tmp_path: Path) -> None:
    stage = torch_bench.stage(kl_coef=0.0)
    engine = torch_bench.opened(stage)
    trained(engine, stage, range(1, 9))
    engine.save(tmp_path, hf=True)
    policy = AutoModelForCausalLM.from_pretrained(tmp_path / "actor" / "huggingface").eval()  # type: ignore[no-untyped-call]
    logits = policy(input_ids=torch.tensor([[1, 10, 20]])).logits[0, -1]
    rewarded, other, punished = logits[50].item(), logits[70].item(), logits[60].item()
    assert rewarded > other > punished
    assert AutoTokenizer.from_pretrained(tmp_path / "actor" / "huggingface").decode([50])


def test_a_checkpoint_of_torch_has_no_file_that_runs_code(torch_bench: TrainerBench, tmp_path: Path) -> None:
    stage = torch_bench.stage("sft")
    engine = torch_bench.opened(stage)
    trained(engine, stage, range(1, 3))
    engine.save(tmp_path, hf=True)
    assert sorted(path.name for path in (tmp_path / "actor").iterdir()) == [
        "huggingface",
        "optimizer.safetensors",
        "trainer_state.json",
    ]
