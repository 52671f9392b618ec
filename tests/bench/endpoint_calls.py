"""The time that a call over the endpoint takes beyond its answer: 1,000 calls under way at any moment, fake engine.

Clients are a process of their own with a kept connection for each call under way. A call's answer takes the engine
`--latency` seconds; the overhead is what the client waits beyond that, and in the process, beside it, what `Model.chat`
takes beyond it. `--turns` of a conversation are asked over each connection, each with all that was said before.

    python -P tests/bench/endpoint_calls.py [--calls 1000] [--latency 4] [--turns 4]
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from figures import read_options, tell

from rftd.ops.clock import SystemClock
from rftd.ops.cycles import tune_collector
from rftd.streams.spec.spec import ModelSpec, SamplingSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.message import Message
from rftd.workers.engines.fake.rollout import FakeArgs, FakeRolloutEngine
from rftd.workers.generation.endpoint.server import ModelEndpoint
from rftd.workers.generation.model import CallBounds, Model
from rftd.workers.weights import checkpoint
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.tensor_bytes import TensorBytes
from rftd.workers.workflows.rewards.reward import RewardResult

SPEC = ModelSpec(path="fake", max_model_len=4096, max_prompt_tokens=3500, max_response_tokens=500)
SAMPLING = SamplingSpec(max_tokens=64)
QUESTION = "What is 17+25=? Think about it, then give the number alone. " * 4
ROLLOUTS = 50


async def ask_over(connection: tuple[str, str], latency_s: float, turns: int, wait_s: float) -> list[float]:
    """The seconds of each call beyond its latency, over one connection. Fails on any error."""
    url, key = connection
    place = urlsplit(url)
    await asyncio.sleep(wait_s)  # so that calls come one by one, as from programs that know nothing of each other
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {key}\r\n"
    messages = [{"role": "user", "content": QUESTION + str(wait_s)}]
    spent = []
    for _ in range(turns):
        body = json.dumps({"model": "m", "messages": messages}).encode()
        begin = time.perf_counter()
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        size = int(answer.partition(b"content-length: ")[2].split()[0])
        message = json.loads(await reader.readexactly(size))["choices"][0]["message"]
        spent.append(time.perf_counter() - begin - latency_s)
        messages += [message, {"role": "user", "content": "Are you sure?"}]
    writer.close()
    return spent


async def clients(given: dict[str, object]) -> None:
    """The process of the clients."""
    connections: list[tuple[str, str]] = given["connections"]  # type: ignore[assignment]
    latency_s = float(given["latency_s"])  # type: ignore[arg-type]
    turns = int(given["turns"])  # type: ignore[call-overload]
    step_s = latency_s / len(connections)
    asked = [ask_over(each, latency_s, turns, number * step_s) for number, each in enumerate(connections)]
    spent = await asyncio.gather(*asked)
    sys.stdout.write(json.dumps([each for some in spent for each in some]))


async def in_process(engine: FakeRolloutEngine, latency_s: float, calls: int, turns: int) -> list[float]:
    """The seconds of each call of `Model.chat` beyond its latency, at the same load."""

    async def program(number: int) -> list[float]:
        model = Model(engine, ByteTokenizer(), spec=SPEC, sampling=SAMPLING, rollout=UUID(int=number))
        await asyncio.sleep(number * latency_s / calls)
        messages = [Message("user", QUESTION + str(number))]
        spent = []
        for _ in range(turns):
            begin = time.perf_counter()
            response = await model.chat(messages)
            spent.append(time.perf_counter() - begin - latency_s)
            messages += [Message("assistant", response.text), Message("user", "Are you sure?")]
        return spent

    return [each for some in await asyncio.gather(*(program(number) for number in range(calls))) for each in some]


async def over_endpoint(engine: FakeRolloutEngine, latency_s: float, calls: int, turns: int) -> tuple[list[float], int]:
    """The seconds of each call beyond its latency, and the tokens that would be trained."""
    endpoint = ModelEndpoint(clock=SystemClock(), random_bytes=os.urandom)
    serving = asyncio.ensure_future(endpoint.run())
    trained = 0
    async with AsyncExitStack() as open_ones:
        served = []
        for number in range(ROLLOUTS):
            model = Model(
                engine,
                ByteTokenizer(),
                spec=SPEC,
                sampling=SAMPLING,
                rollout=UUID(int=number),
                endpoint=endpoint,
            )
            bounds = CallBounds(calls=calls * turns, concurrent=calls)
            served.append(await open_ones.enter_async_context(model.served(bounds)))
        connections = [
            (served[number % ROLLOUTS].base_url, served[number % ROLLOUTS].api_key) for number in range(calls)
        ]
        given = {"connections": connections, "latency_s": latency_s, "turns": turns}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", __file__, "--clients", stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 26
        )
        told, _ = await process.communicate(json.dumps(given).encode())
        assert process.returncode == 0
        trained = sum(
            int(result.loss_mask.sum()) for each in served for result in each.results(RewardResult(value=0.0))
        )
    serving.cancel()
    await asyncio.wait([serving])
    spent: list[float] = json.loads(told)
    return spent, trained


def figures_of(spent: Sequence[float]) -> dict[str, float]:
    p50, p95, p99 = np.percentile(spent, [50, 95, 99]) * 1000
    return {"p50_ms": round(float(p50), 2), "p95_ms": round(float(p95), 2), "p99_ms": round(float(p99), 2)}


async def main(calls: int, latency_s: float, turns: int) -> None:
    weights = {"w": TensorBytes("uint8", (3,), memoryview(b"abc"))}
    with tempfile.TemporaryDirectory() as folder:
        written = checkpoint.export(weights, Path(folder) / "v0-g0", version=0, generation=0)
        engine = FakeRolloutEngine(FakeArgs(latency_s=latency_s), SystemClock())
        await engine.load_weights(
            WeightsRef(version=0, generation=0, path=written.path, manifest=written.manifest, checksum=written.checksum)
        )
        beside = await in_process(engine, latency_s, calls, turns)
        before = engine.stats()
        begin_s = time.process_time()
        spent, trained = await over_endpoint(engine, latency_s, calls, turns)
        processor_s = time.process_time() - begin_s
        after = engine.stats()
    drawn = after.tokens_total - before.tokens_total
    assert after.requests_total - before.requests_total == len(spent) == calls * turns
    assert trained == drawn, (trained, drawn)
    tell(
        {
            "calls_under_way": calls,
            "calls": len(spent),
            "calls_per_s": calls / latency_s,
            "endpoint": figures_of(spent),
            "processor_ms_per_call": round(1000 * processor_s / len(spent), 2),
            "in_process": figures_of(beside),
            "trained_of_drawn_tokens": [trained, drawn],
        }
    )


if __name__ == "__main__":
    asked = read_options(__doc__, calls=1000, latency=4.0, turns=4, clients=False)
    tune_collector()  # as every process of rftd does
    if asked.clients:
        asyncio.run(clients(json.load(sys.stdin)))
    else:
        asyncio.run(main(asked.calls, asked.latency, asked.turns))
