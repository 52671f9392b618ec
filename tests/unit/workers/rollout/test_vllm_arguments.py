"""vLLM's arguments from a specification, and those that it is never given; vLLM itself is not needed for it."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rftd.ops.clock import ManualClock
from rftd.ops.errors import ConfigError
from rftd.streams.spec.engines import EngineNeeds
from rftd.streams.spec.spec import ModelSpec, RolloutSpec
from rftd.workers.engines.vllm.arguments import ENGINE, VllmArgs, engine_arguments
from rftd.workers.engines.vllm.refused import REFUSED, not_given
from rftd.workers.engines.vllm.tables import ASYNC_ENGINE_ARGS
from rftd.workers.generation.engine_definition import EngineOpening


def opening(arguments: dict[str, Any] | None = None, **needs: Any) -> EngineOpening[VllmArgs]:
    return EngineOpening(
        model=ModelSpec(path="/model", max_model_len=96, max_prompt_tokens=32, max_response_tokens=64),
        rollout=RolloutSpec(engine="vllm", dtype="bfloat16", needs=EngineNeeds(**needs)),
        arguments=VllmArgs(vllm=arguments or {}),
        slots=8,
        threads=1,
        clock=ManualClock(),
        folder=Path("/job"),
    )


def test_what_the_file_says_is_what_vllm_is_given() -> None:
    made = engine_arguments(
        opening({"block_size": 32}, tensor_parallel_size=2, max_num_seqs=4, enable_prefix_caching=False)
    )
    expected = {
        **{"model": "/model", "max_model_len": 96, "dtype": "bfloat16", "block_size": 32},
        **{"tensor_parallel_size": 2, "max_num_seqs": 4, "enable_prefix_caching": False},
    }
    assert {name: made[name] for name in expected} == expected
    assert "max_num_batched_tokens" not in made


def test_every_need_that_has_vllms_name_reaches_it() -> None:
    needs: dict[str, Any] = {
        **{"tensor_parallel_size": 4, "enable_expert_parallel": True, "gpu_memory_utilization": 0.5},
        **{"enforce_eager": True, "enable_prefix_caching": False, "enable_chunked_prefill": False},
        **{"max_num_seqs": 3, "max_num_batched_tokens": 16384},
    }
    made = engine_arguments(opening(**needs))
    assert {name: made[name] for name in needs} == needs


def test_a_cache_of_a_given_size_asks_for_no_share_of_the_gpu_to_be_free() -> None:
    given = replace(opening(gpu_memory_utilization=0.9), arguments=VllmArgs(kv_cache_memory_bytes=1000))
    made = engine_arguments(given)
    assert made["kv_cache_memory_bytes"] == 1000
    assert made["gpu_memory_utilization"] < 0.05, "a trainer on the same GPU may hold the rest"


@pytest.mark.parametrize("name", [*REFUSED, "dtype", "max_num_seqs", "max_num_seq"])
def test_an_argument_that_would_break_a_promise_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        engine_arguments(opening({name: 1}))
    assert raised.value.field == f"explorer.rollout_model.extra_engine_args.vllm.{name}"


def test_nothing_that_a_file_gives_replaces_what_the_engine_needs() -> None:
    """Whatever vLLM calls its arguments: those of the engine come last."""
    needed = engine_arguments(opening())
    names = [name for name in needed if name in ASYNC_ENGINE_ARGS]
    assert set(names) == set(needed)
    assert not [name for name in names if not list(not_given({name: needed[name]}))]


@pytest.mark.parametrize("name", ["data_parallel_size", "pipeline_parallel_size"])
def test_one_engine_is_one_set_of_weights(name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        engine_arguments(opening(**{name: 2}))
    assert raised.value.field == f"explorer.rollout_model.{name}"


@pytest.mark.anyio
async def test_a_deterministic_experiment_is_refused() -> None:
    with pytest.raises(ConfigError, match="one seed may draw different tokens"):
        await ENGINE.open(replace(opening(), deterministic=True))


@pytest.mark.anyio
async def test_an_engine_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    lacking = lambda name, *more: None if name == "vllm" else found(name, *more)  # noqa: E731
    monkeypatch.setattr("rftd.workers.engines.vllm.arguments.find_spec", lacking)
    with pytest.raises(ConfigError, match="vLLM is not installed") as raised:
        await ENGINE.open(opening())
    assert "make engines-cpu" in str(raised.value.fix)
