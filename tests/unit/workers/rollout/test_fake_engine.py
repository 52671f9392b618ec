"""The latencies of the fake engine: log-normal, capped, and a function of the request alone."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np
import pytest

from rftd.ops.clock import ManualClock
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.engines.fake.rollout import FakeArgs, FakeRolloutEngine, latency_of
from rftd.workers.generation.engine import GenerationRequest, Sampling
from rftd.workers.weights import checkpoint
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.tensor_bytes import TensorBytes


def test_latencies_have_the_median_the_tail_and_the_cap_that_were_asked_for() -> None:
    args = FakeArgs(latency_s=0.2, latency_sigma=0.99, latency_cap=30.0)
    drawn = np.array([latency_of(args, seed) for seed in range(4000)])
    assert abs(np.median(drawn) / 0.2 - 1) < 0.1
    assert 8 < np.percentile(drawn, 99) / np.median(drawn) < 12.5
    capped = [latency_of(msgspec.structs.replace(args, latency_cap=2.0), seed) for seed in range(100)]
    assert max(capped) == pytest.approx(0.4)
    assert min(capped) == pytest.approx(min(drawn[:100]))
    assert {latency_of(FakeArgs(latency_s=0.2), seed) for seed in range(10)} == {0.2}


@pytest.mark.anyio
async def test_a_response_lasts_its_latency_and_is_as_long_as_it_lasts(tmp_path: Path) -> None:
    weights = {"w": TensorBytes("uint8", (3,), memoryview(b"abc"))}
    written = checkpoint.export(weights, tmp_path / "v0-g0", version=0, generation=0)
    clock, tokenizer = ManualClock(), ByteTokenizer()
    given = {"skill": 1.0, "latency_s": 2.0, "latency_sigma": 0.99, "latency_cap": 10.0, "tokens_per_s": 3.0}
    engine = FakeRolloutEngine(FakeArgs(**given), clock)
    await engine.load_weights(
        WeightsRef(version=0, generation=0, path=written.path, manifest=written.manifest, checksum=written.checksum)
    )
    for seed in range(20):
        began_s = clock.monotonic_s()
        request = GenerationRequest(
            id=UUID(int=seed), prompt=tuple(tokenizer.encode("2+3=")), sampling=Sampling(max_tokens=40, seed=seed)
        )
        response = await engine.generate(request)
        latency_s = latency_of(FakeArgs(**given), seed)
        assert clock.monotonic_s() - began_s == pytest.approx(latency_s, abs=1e-6)
        assert len(response.tokens) == max(2, min(40, round(latency_s * 3.0)))
        assert tokenizer.decode(response.tokens).strip() == "5"
        assert response.finish == "stop"
