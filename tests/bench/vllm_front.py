"""What our front adds to vLLM's: processor time per 1,000 tokens against bare `AsyncLLM`, and updates in flight.

Runs in the environment of the CPU engines and starts one engine. Both sides ask one AsyncLLM for as many tokens, in
pairs, each first in turn; counted is the processor time of this process alone, which other work does not change. Then
`--updates` weight versions are loaded while 16 requests draw. Wall times are of the machine as it is.

    build/engines-cpu/bin/python -P tests/bench/vllm_front.py [--rounds 6] [--updates 100]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from figures import tell

sys.path.append(str(Path(__file__).parents[1]))

from synthetic.models.vllm_engines import Policies, ask, open_vllm

from rftd.workers.rollout.engine import GenerationRequest

if TYPE_CHECKING:
    from rftd.workers.rollout.engines.vllm.engine import VllmRolloutEngine

REQUESTS = 64
RUNNING = 16
TOKENS = 64
LENGTH = 200
"""Tokens of a request that runs during updates."""


def questions(round_number: int) -> list[GenerationRequest]:
    chance = np.random.default_rng(round_number)
    prompts = [tuple(chance.integers(7, 105, 12).tolist()) for _ in range(REQUESTS)]
    return [
        ask(number, prompt=prompt, max_tokens=TOKENS, min_tokens=TOKENS, ignore_eos=True)
        for number, prompt in enumerate(prompts)
    ]


async def ours(engine: VllmRolloutEngine, requests: Sequence[GenerationRequest]) -> int:
    """The number of drawn tokens."""
    drawn = await asyncio.gather(*map(engine.generate, requests))
    return sum(len(each.tokens) for each in drawn)


async def bare(llm: Any, requests: Sequence[GenerationRequest], name: str) -> int:
    """The same of AsyncLLM, at its cheapest: final outputs alone, no text, a log-probability for each token."""
    from vllm import SamplingParams
    from vllm.inputs.engine import tokens_input
    from vllm.sampling_params import RequestOutputKind

    async def one(number: int, request: GenerationRequest) -> int:
        sampling = SamplingParams(
            temperature=1.0,
            max_tokens=TOKENS,
            min_tokens=TOKENS,
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        drawn = 0
        async for output in llm.generate(tokens_input(list(request.prompt)), sampling, f"{name}-{number}"):
            drawn = len(output.outputs[0].token_ids)
        return drawn

    return sum(await asyncio.gather(*(one(number, request) for number, request in enumerate(requests))))


async def processor_ms(ask_all: Callable[[], Awaitable[int]]) -> float:
    """Processor milliseconds of this process for 1,000 tokens."""
    began_s = time.process_time()
    tokens = await ask_all()
    assert tokens == REQUESTS * TOKENS
    return 1e6 * (time.process_time() - began_s) / tokens


async def front(engine: VllmRolloutEngine, rounds: int) -> dict[str, object]:
    pairs: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        requests = questions(number)
        sides: dict[str, Callable[[], Awaitable[int]]] = {
            "ours": lambda requests=requests: ours(engine, requests),  # type: ignore[misc]
            "bare": lambda requests=requests, number=number: bare(engine._llm, requests, f"bare-{number}"),  # type: ignore[misc]
        }
        order = ("ours", "bare") if number % 2 else ("bare", "ours")
        found = {side: await processor_ms(sides[side]) for side in order}
        if number:  # the first is to warm up
            pairs.append((found["ours"], found["bare"]))
    return {
        "ours_processor_ms_per_1000_tokens": [round(mine, 1) for mine, _ in pairs],
        "bare_processor_ms_per_1000_tokens": [round(theirs, 1) for _, theirs in pairs],
        "median_ratio": round(statistics.median(mine / theirs for mine, theirs in pairs), 3),
    }


async def in_flight(engine: VllmRolloutEngine, policies: Policies, updates: int) -> dict[str, object]:
    """Loads versions one after another while requests draw; a request that ends is followed by another."""
    published = [policies.publish(version) for version in range(1, updates + 1)]

    async def drawing(number: int) -> None:
        while True:
            await engine.generate(ask(number, max_tokens=LENGTH, min_tokens=LENGTH, ignore_eos=True))

    took_ms = []
    running = []
    tasks = [asyncio.ensure_future(drawing(number)) for number in range(RUNNING)]
    try:
        for weights in published:
            goal = engine.stats().tokens_total + RUNNING * 4
            while engine.stats().tokens_total < goal:  # noqa: ASYNC110 (an engine has counters, no events)
                await asyncio.sleep(0.002)
            running.append(engine.stats().running)
            began_s = time.perf_counter()
            await engine.load_weights(weights)
            took_ms.append(1000 * (time.perf_counter() - began_s))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    p50, p95 = np.percentile(took_ms, [50, 95])
    return {
        "updates": len(took_ms),
        "running": [min(running), max(running)],
        "p50_ms": float(p50),
        "p95_ms": float(p95),
    }


async def main(rounds: int, updates: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        policies = Policies(Path(folder), "tied, biases")
        began_s = time.monotonic()
        engine = await open_vllm(policies.base, slots=REQUESTS)
        try:
            await engine.load_weights(policies.publish(0))
            await engine.generate(ask())
            start_s = time.monotonic() - began_s
            figures = {"front": await front(engine, rounds), "in_flight": await in_flight(engine, policies, updates)}
        finally:
            await engine.close()
        tell({**figures, "until_first_response_s": round(start_s, 1), "load": os.getloadavg()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--updates", type=int, default=100)
    asked = parser.parse_args()
    asyncio.run(main(asked.rounds, asked.updates))
