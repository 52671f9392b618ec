"""What every rollout engine promises, of vLLM: one engine serves all checks, the last of which closes it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from synthetic.models.vllm_engines import CACHE_BYTES, make_vllm_model

from rftd.workers.rollout.engines.contract.bench import EngineBench, opened
from rftd.workers.rollout.engines.contract.checks import MODEL_CHECKS, Check


@pytest.fixture(scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineBench]:
    folder = tmp_path_factory.mktemp("vllm")
    arguments = {"kv_cache_memory_bytes": CACHE_BYTES}
    async with opened("vllm", folder, arguments=arguments, make_model=make_vllm_model) as made:
        yield made


@pytest.mark.anyio
@pytest.mark.parametrize("check", MODEL_CHECKS, ids=lambda check: check.__name__)
async def test_vllm(check: Check, bench: EngineBench) -> None:
    await check(bench)
