"""What every rollout engine promises: ours run the checks that third parties' tests run too."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from synthetic.docs.package import install_next_token

from rftd.workers.engines.contract.rollout.bench import EngineBench, opened
from rftd.workers.engines.contract.rollout.checks import CHECKS, MODEL_CHECKS, Check


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The loop's kind, for the whole module, as the engines are."""
    return "asyncio"


@pytest.fixture(scope="module")
async def torch_bench(tmp_path_factory: pytest.TempPathFactory, torch_device: str) -> AsyncIterator[EngineBench]:
    async with opened("torch", tmp_path_factory.mktemp("torch"), arguments={"device": torch_device}) as bench:
        yield bench


@pytest.fixture(scope="module")
async def fake_bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineBench]:
    async with opened("fake", tmp_path_factory.mktemp("fake"), arguments={"latency_s": 0.05}) as bench:
        yield bench


@pytest.fixture(scope="module")
async def next_token_bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineBench]:
    """The engine of docs/extending.md, installed."""
    packages = tmp_path_factory.mktemp("packages")
    install_next_token(packages)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(packages))
        async with opened("next_token", tmp_path_factory.mktemp("next_token")) as bench:
            yield bench


@pytest.mark.anyio
@pytest.mark.parametrize("check", MODEL_CHECKS, ids=lambda check: check.__name__)
async def test_torch(check: Check, torch_bench: EngineBench) -> None:
    await check(torch_bench)


@pytest.mark.anyio
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_fake(check: Check, fake_bench: EngineBench) -> None:
    await check(fake_bench)


@pytest.mark.anyio
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_a_third_partys(check: Check, next_token_bench: EngineBench) -> None:
    await check(next_token_bench)
