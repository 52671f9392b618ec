"""The bench of a GPU runs its path of vLLM with a tiny model on a CPU; its engine is the one that is closed at work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.engines.contract.rollout.bench import EngineBench
from rftd.workers.engines.contract.rollout.checks import closing_ends_what_runs
from rftd.workers.generation.engine import RolloutEngine

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture
def gpu_figures(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import gpu_figures

    return gpu_figures


@pytest.mark.anyio
async def test_its_figures_of_vllm_are_all_measured(gpu_figures: Any, tmp_path: Path) -> None:
    @asynccontextmanager
    async def closed_at_work(spec: ExperimentSpec, scale: Any) -> AsyncIterator[RolloutEngine]:
        async with gpu_figures.opened(spec, scale) as engine:
            yield engine

            async def opened() -> RolloutEngine:
                return engine

            model = Path(spec.stages[0].model.path)
            await closing_ends_what_runs(EngineBench(opened, tmp_path / "published", (model, model)))

    told = await gpu_figures.measured("tiny", ["vllm"], gpu_figures.TINY, tmp_path, closed_at_work)
    vllm = told["vllm"]
    for name in ("open_s", "tokens_per_s", "into_running_engine_s"):
        assert vllm[name] > 0, name
    assert vllm["longest_gap_near_update_ms"] > 0
    assert told["device_to_mapped_file_s"] > 0
    training = vllm["kept, sharing auto"]
    assert training["trained_tokens_per_s"] > 0
    assert training["of_matmul"] > 0
    # bfloat16 on both sides.
    assert training["mismatch"]["mismatch/k3/max"] < 1e-2
