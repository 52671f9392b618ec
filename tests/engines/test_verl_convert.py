"""Checkpoints of verl itself, and of its engine here on two ranks, as `rftd convert` makes them loadable."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from synthetic.models.foreign_checkpoints import save_as_verl, small_model
from transformers import AutoTokenizer

from rftd.daemon.cli.cli import main
from rftd.workers.engines.contract.trainer import TrainerBench, trained
from rftd.workers.weights.torch_bytes import tensors_of


def loads_as(weights: dict[str, torch.Tensor], folder: Path) -> None:
    """Every number is at its place and in float32, and greedy answers are those of the weights."""
    from transformers import AutoModelForCausalLM

    found = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    wanted = AutoModelForCausalLM.from_config(found.config, dtype=torch.float32)
    wanted.load_state_dict(weights, strict=False)
    wanted.tie_weights()
    for name, value in weights.items():
        assert found.state_dict()[name].dtype == torch.float32, name
        assert torch.equal(found.state_dict()[name], value), name
    prompt = torch.tensor([[1, 5, 9, 33]])
    answers = [each.eval().generate(prompt, max_new_tokens=8, do_sample=False) for each in (wanted, found)]
    assert torch.equal(*answers)


@pytest.mark.parametrize(("ranks", "tied"), [(1, True), (2, False)])
def test_what_verl_and_torch_save_is_converted(ranks: int, tied: bool, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn: Any = mp.spawn
    spawn(save_as_verl, (ranks, port, str(tmp_path), tied), nprocs=ranks)
    weights = small_model(tied=tied).state_dict()
    assert main(["convert", "--checkpoint-dir", str(tmp_path)]) == 0
    for step in (1,) if tied else (1, 2):
        loads_as(weights, tmp_path / f"global_step_{step}" / "actor" / "huggingface")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainerBench]:
    made = TrainerBench("verl", tmp_path_factory.mktemp("bench"), arguments={"ranks": 2, "device": "cpu"})
    yield made
    made.close()


def test_what_two_ranks_trained_here_is_converted(bench: TrainerBench) -> None:
    stage = bench.stage("sft")
    engine = bench.opened(stage)
    trained(engine, stage, range(1, 3))
    run = bench.new_folder()
    engine.save(run / "global_step_2", hf=False)
    actor = run / "global_step_2" / "actor"
    assert (actor / "model.rank_1_of_2.safetensors").is_file()
    assert not (actor / "huggingface").exists()
    assert main(["convert", "-c", str(run)]) == 0
    assert AutoTokenizer.from_pretrained(actor / "huggingface").decode([50])
    weights = {name: value.clone() for name, value in tensors_of(engine.snapshot().weights()).items()}
    loads_as(weights, actor / "huggingface")
