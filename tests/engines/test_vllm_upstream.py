"""The installed vLLM, without an engine: its arguments, and the model runner that ours needs."""

from __future__ import annotations

import dataclasses
import os
import runpy
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engines.conftest import PACKAGES
from synthetic.models.vllm_arguments import installed_arguments

from rftd.ops.errors import ConfigError, RolloutError
from rftd.workers.engines.vllm.tables import ASYNC_ENGINE_ARGS, FILE, TABLES

MAKE = Path(__file__).parents[1] / "golden" / "make_vllm_tables.py"


def test_the_tables_are_the_installed_vllms() -> None:
    assert FILE.read_bytes() == runpy.run_path(str(MAKE))["written"](), f"run {MAKE}"
    assert installed_arguments() == ASYNC_ENGINE_ARGS
    (version,) = {each.version for each in metadata.distributions() if each.metadata["Name"] in PACKAGES["vllm"]}
    assert version.startswith(f"{TABLES.version}.")


def test_what_a_file_may_give_makes_arguments_of_vllm() -> None:
    from vllm import AsyncEngineArgs

    given: dict[str, Any] = {"hf_overrides": {"rope_theta": 1}, "block_size": 32, "compilation_config": {"mode": 0}}
    made = dataclasses.asdict(AsyncEngineArgs(model="m", **given))
    assert (made["hf_overrides"], made["block_size"]) == (given["hf_overrides"], 32)


def test_workers_beyond_memory_nodes_share_cores_and_beyond_cores_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.utils.cpu_resource_utils import get_visible_memory_node

    from rftd.workers.engines.vllm.start import share_cores

    name = "VLLM_CPU_SIM_MULTI_NUMA"
    cores = len(os.sched_getaffinity(0))
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    # Set and removed, so that what is set meanwhile is removed after the test.
    monkeypatch.setenv(name, "0")
    monkeypatch.delenv(name)
    share_cores(1)
    assert name not in os.environ
    with pytest.raises(ConfigError, match=f"is {cores + 1}, .* vLLM may use {cores}") as raised:
        share_cores(cores + 1)
    assert raised.value.field == "explorer.rollout_model.tensor_parallel_size"
    share_cores(cores)
    assert os.environ.get(name) == ("1" if cores > len(get_visible_memory_node()) else None)
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|0")
    share_cores(cores + 1)
    assert name not in os.environ, "somebody has said it all"


def test_a_model_runner_with_another_sampler_is_refused() -> None:
    from rftd.workers.engines.vllm.worker import RolloutWorker

    worker = RolloutWorker()
    worker.model_runner = SimpleNamespace(sampler="its own", device="cpu")
    with pytest.raises(RolloutError, match="SimpleNamespace for this model"):
        worker.prepare_rollouts("m")
    assert worker.model_runner.sampler == "its own"


def test_weights_prepared_for_a_gpu_are_copied_into_the_graphs_buffers() -> None:
    from rftd.workers.engines.vllm.prepared_weights import PreparedWeights

    embeddings, head, twin, tied = (torch.nn.Linear(3, 3, bias=each < 1) for each in range(4))
    head.weight = embeddings.weight
    tied.weight = twin.weight
    twin.bias = torch.nn.Parameter(torch.ones(3))
    for layer, persistent in ((embeddings, 1.0), (twin, 2.0)):
        layer.register_buffer("scale", torch.full((2,), persistent))
        layer.register_buffer("rotations", torch.full((2,), persistent), persistent=False)
    addresses = [each.data_ptr() for each in (*embeddings.parameters(), embeddings.scale)]
    prepared = PreparedWeights({embeddings: twin, head: tied}, in_place=True)
    prepared.swap()
    prepared.free()
    assert [each.data_ptr() for each in (*embeddings.parameters(), embeddings.scale)] == addresses
    assert head.weight is embeddings.weight
    assert torch.equal(embeddings.weight, twin.weight)
    assert embeddings.bias.tolist() == [1.0] * 3
    assert embeddings.scale.tolist() == [2.0] * 2
    assert embeddings.rotations.tolist() == [1.0] * 2, "computed, and no part of the weights"
