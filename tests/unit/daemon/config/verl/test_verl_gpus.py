"""The GPUs of an import are split so that the sizes of its engines and of its trainer divide them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rftd.daemon.config.loading import load_text
from rftd.daemon.config.verl.gpus import GpuGrid, GpuSplit, split_gpus
from rftd.daemon.config.verl.importing import ImportedExperiment
from rftd.streams.spec.spec import StageSpec
from rftd.workers.devices.host import Device, Host

Fields = Callable[..., dict[str, Any]]
Command = Callable[..., ImportedExperiment]
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
ULYSSES = f"{ACTOR}.ulysses_sequence_parallel_size"
SPREAD = f"{ACTOR}.fsdp_config.fsdp_size"
ENGINES = "explorer.rollout_model.engine_num"
PARALLEL = "explorer.rollout_model.tensor_parallel_size"
GROUP = f"{ROLLOUT}.n=4"


def cluster_host(nodes: int, per_node: int) -> Host:
    """A cluster whose nodes have every package that a trainer of verl needs."""
    devices = tuple(
        Device(kind="cuda", index=index, name="g", uuid=f"GPU-{node}-{index}", memory_bytes=1 << 36, node=f"n{node}")
        for node in range(nodes)
        for index in range(per_node)
    )
    packages = dict.fromkeys(("verl", "vllm", "flash-attn", "megatron-core", "mbridge", "transformer-engine"), "1.0")
    return Host(devices=devices, clustered=nodes > 1, packages=packages)


def loaded(imported: ImportedExperiment, nodes: int, per_node: int) -> StageSpec:
    """The one stage of the imported file, as a daemon of that cluster takes it."""
    host = cluster_host(nodes, per_node)
    return load_text(imported.text, "o.yaml", environ={"HOME": "/h"}, cwd=Path("/w"), host=host).spec.stages[0]


@pytest.mark.parametrize(
    ("cluster", "per_engine", "beside", "sizes", "expected"),
    [
        (GpuGrid(1, 8), 1, 1, 1, GpuSplit(2, 1, 2, 4)),
        (GpuGrid(1, 8), 2, 0, 1, GpuSplit(1, 2, 0, 6)),
        (GpuGrid(1, 2), 1, 0, 1, GpuSplit(1, 1, 0, 1)),
        (GpuGrid(1, 8), 2, 0, 4, GpuSplit(2, 2, 0, 4)),
        (GpuGrid(1, 8), 1, 0, 4, GpuSplit(4, 1, 0, 4)),
        # A trainer on more than one node has whole ones.
        (GpuGrid(2, 8), 2, 0, 1, GpuSplit(4, 2, 0, 8)),
        (GpuGrid(4, 8), 4, 0, 1, GpuSplit(2, 4, 0, 24)),
        (GpuGrid(2, 8), 2, 4, 1, GpuSplit(2, 2, 1, 8)),
        # An experiment has slots for 16 engines: per_engine takes more GPUs.
        (GpuGrid(16, 8), 1, 0, 8, GpuSplit(16, 2, 0, 96)),
        (GpuGrid(1, 2), 2, 0, 1, None),
        (GpuGrid(1, 1), 1, 0, 1, None),
        (GpuGrid(1, 8), 4, 4, 1, None),
        (GpuGrid(1, 8), 2, 0, 8, None),
    ],
)
def test_the_share_of_the_gpus(
    cluster: GpuGrid, per_engine: int, beside: int, sizes: int, expected: GpuSplit | None
) -> None:
    assert split_gpus(cluster, per_engine=per_engine, beside=beside, sizes=sizes) == expected


@pytest.mark.parametrize(
    ("nodes", "overrides", "trainer"),
    [
        (1, [f"{ULYSSES}=4"], 4),
        (1, [f"{SPREAD}=8"], 6),
        (2, [f"{SPREAD}=8"], 8),
        (2, [f"{ULYSSES}=8"], 8),
        (1, [f"{ULYSSES}=8"], 4),
        (1, [f"{ROLLOUT}.tensor_model_parallel_size=8"], 4),
        (16, [], 96),
        (1, [f"{ACTOR}.strategy=megatron", f"{ACTOR}.megatron.tensor_model_parallel_size=8"], 4),
        (1, [f"{ROLLOUT}.tensor_model_parallel_size=1", f"{ROLLOUT}.data_parallel_size=4"], 4),
        (2, [f"{ROLLOUT}.pipeline_model_parallel_size=2"], 8),
    ],
)
def test_the_check_takes_the_split(command: Command, nodes: int, overrides: list[str], trainer: int) -> None:
    imported = command(GROUP, f"trainer.nnodes={nodes}", "trainer.n_gpus_per_node=8", *overrides)
    stage = loaded(imported, nodes, 8)
    assert stage.trainer.engine == "verl"
    assert stage.trainer.devices == trainer


def test_a_size_that_leaves_explorers_no_gpu_is_written_smaller_and_said(command: Command) -> None:
    imported = command(GROUP, f"{ULYSSES}=8")
    assert "ulysses_sequence_parallel_size: 4" in imported.text
    (line,) = [line for line in imported.lines if line.key == ULYSSES]
    assert line.text == "(8 would leave explorers no GPU: 4 is written)"
    # Engines keep the size that the script gives them.
    assert "tensor_parallel_size: 2" in command(GROUP, f"{ULYSSES}=8", f"{ROLLOUT}.tensor_model_parallel_size=2").text


def test_engines_have_no_copies_and_no_pipelines(fields: Fields) -> None:
    tree = fields(GROUP, "trainer.nnodes=2", f"{ROLLOUT}.data_parallel_size=2")
    assert tree[PARALLEL] == 4
    assert "explorer.rollout_model.data_parallel_size" not in tree


def test_micro_batches_of_older_releases_are_those_of_all_gpus(fields: Fields) -> None:
    tree = fields(GROUP, f"{ACTOR}.ppo_micro_batch_size=64")
    assert tree[f"trainer.trainer_config.{ACTOR}.ppo_micro_batch_size_per_gpu"] == 8
