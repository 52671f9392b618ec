"""The installed vLLM, without an engine: its arguments, and the model runner that ours needs."""

from __future__ import annotations

import dataclasses
import os
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest
from engines.conftest import PACKAGES
from synthetic.models.vllm_arguments import installed_arguments

from rftd.ops.errors import ConfigError, RolloutError
from rftd.workers.rollout.engines.vllm.async_engine_args import ASYNC_ENGINE_ARGS, VERSION


def test_the_table_of_arguments_is_the_installed_vllms() -> None:
    installed = installed_arguments()
    assert installed == ASYNC_ENGINE_ARGS, "run tests/golden/make_vllm_arguments.py"
    (version,) = {each.version for each in metadata.distributions() if each.metadata["Name"] in PACKAGES["vllm"]}
    assert version.startswith(f"{VERSION}.")


def test_what_a_file_may_give_makes_arguments_of_vllm() -> None:
    from vllm import AsyncEngineArgs

    given: dict[str, Any] = {"hf_overrides": {"rope_theta": 1}, "block_size": 32, "compilation_config": {"mode": 0}}
    made = dataclasses.asdict(AsyncEngineArgs(model="m", **given))
    assert (made["hf_overrides"], made["block_size"]) == (given["hf_overrides"], 32)


def test_more_workers_than_memory_nodes_share_the_cores_and_more_than_cores_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.utils.cpu_resource_utils import get_visible_memory_node

    from rftd.workers.rollout.engines.vllm.start import share_cores

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
    from rftd.workers.rollout.engines.vllm.worker import RolloutWorker

    worker = RolloutWorker()
    worker.model_runner = SimpleNamespace(sampler="its own", device="cpu")
    with pytest.raises(RolloutError, match="SimpleNamespace for this model"):
        worker.prepare_rollouts("m")
    assert worker.model_runner.sampler == "its own"
