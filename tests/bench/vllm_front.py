"""What our front adds to vLLM's: processor time per 1,000 tokens against bare `AsyncLLM`, and updates in flight.

Runs in the environment of the CPU engines and starts one engine. Both sides ask one AsyncLLM for as many tokens, in
pairs, each first in turn; counted is the processor time of this process alone, which other work does not change. Then
`--updates` weight versions are loaded while 16 requests draw. Wall times are of the machine as it is.

With `--size-mb` the model has about so many megabytes in float32, and updates alone are measured: for how long decoding
stands still, which is the longest gap between two decode steps of the worker from the beginning of an update to its
end, beside a copy of as many bytes, and the gap of a time without updates.

    build/engines-cpu/bin/python -P tests/bench/vllm_front.py [--rounds 6] [--updates 100]
    build/engines-cpu/bin/python -P tests/bench/vllm_front.py --size-mb 500 [--updates 12]
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch
from safetensors.torch import load_file

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import median_of, read_options, tell
from synthetic.models.vllm_engines import Policies, ask, open_vllm
from weights_in_flight import copy_ms

from rftd.workers.generation.engine import GenerationRequest

if TYPE_CHECKING:
    from rftd.workers.engines.vllm.engine import VllmRolloutEngine
    from rftd.workers.weights.channel import WeightsRef

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
        "median_ratio": median_of((mine / theirs for mine, theirs in pairs), 3),
    }


@asynccontextmanager
async def drawing(engine: VllmRolloutEngine) -> AsyncIterator[None]:
    """Requests that run while the block does; one that ends is followed by another."""

    async def on_and_on(number: int) -> None:
        while True:
            await engine.generate(ask(number, max_tokens=LENGTH, min_tokens=LENGTH, ignore_eos=True))

    tasks = [asyncio.ensure_future(on_and_on(number)) for number in range(RUNNING)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def steps(engine: VllmRolloutEngine, count: int) -> None:
    """Returns when so many more tokens of each request were drawn."""
    goal = engine.stats().tokens_total + RUNNING * count
    while engine.stats().tokens_total < goal:  # noqa: ASYNC110 (an engine has counters, no events)
        await asyncio.sleep(0.002)


def percentiles(took_ms: Sequence[float]) -> dict[str, float]:
    p50, p95 = np.percentile(took_ms, [50, 95])
    return {"p50_ms": round(float(p50), 1), "p95_ms": round(float(p95), 1)}


async def in_flight(engine: VllmRolloutEngine, policies: Policies, updates: int) -> dict[str, object]:
    """Loads versions one after another while requests draw."""
    published = [policies.publish(version) for version in range(1, updates + 1)]
    took_ms = []
    running = []
    async with drawing(engine):
        for weights in published:
            await steps(engine, 4)
            running.append(engine.stats().running)
            began_s = time.perf_counter()
            await engine.load_weights(weights)
            took_ms.append(1000 * (time.perf_counter() - began_s))
    return {"updates": len(took_ms), "running": [min(running), max(running)], **percentiles(took_ms)}


async def standing_still(engine: VllmRolloutEngine, versions: Sequence[WeightsRef], updates: int) -> dict[str, object]:
    """Loads these versions in turn while requests draw, and looks at the gaps between the worker's steps meanwhile."""
    took_ms = []
    still_ms = []
    all_gaps_ms = []
    tokenless_ms = []
    usual_ms: list[float] = []
    step_ms: dict[bool, list[float]] = {True: [], False: []}
    async with drawing(engine):
        await steps(engine, 16)
        for number in range(updates):
            await engine._call("rollout_step_times")
            await steps(engine, 8)
            began_s = time.monotonic()
            await engine.load_weights(versions[number % len(versions)])
            ended_s = time.monotonic()
            await steps(engine, 8)
            times = await engine._call("rollout_step_times")
            gaps_ms = []
            without_ms = []
            for before, after in pairwise(times):
                meanwhile = after[0] > began_s and before[1] < ended_s
                (gaps_ms if meanwhile else usual_ms).append(1000 * (after[0] - before[1]))
                step_ms[meanwhile].append(1000 * (after[1] - after[0]))
                if meanwhile:
                    without_ms.append(1000 * (after[1] - before[1]))
            tokenless_ms.append(max(without_ms))
            took_ms.append(1000 * (ended_s - began_s))
            still_ms.append(max(gaps_ms))
            all_gaps_ms.append(sum(gaps_ms) - len(gaps_ms) * statistics.median(usual_ms))
    return {
        "updates": updates,
        "update": percentiles(took_ms),
        "still": percentiles(still_ms),
        "still_max_ms": round(max(still_ms), 1),
        "still_p50_ms_all_gaps_together": median_of(all_gaps_ms, 1),
        "longest_without_a_token": percentiles(tokenless_ms),
        "usual_gap_p50_ms": median_of(usual_ms, 2),
        "usual_step": percentiles(step_ms[False]),
        "step_meanwhile": percentiles(step_ms[True]),
    }


def held_mb(engine: VllmRolloutEngine) -> int:
    """What the engine's processes hold for themselves."""
    held = (psutil.Process(pid).memory_info() for pid in engine.pids)
    return round(sum(each.rss - each.shared for each in held) / 1e6)


async def of_size(size_mb: int, updates: int) -> dict[str, object]:
    """Updates of a model of this size, against a copy of it."""
    with tempfile.TemporaryDirectory() as folder:
        policies = Policies(Path(folder), "tied, biases", size_mb=size_mb)
        tensors = load_file(policies.base / "model.safetensors")
        changed = {name: 1.01 * tensor for name, tensor in tensors.items()}
        versions = [policies.announce(each, version) for version, each in enumerate((tensors, changed))]
        engine = await open_vllm(policies.base, slots=RUNNING, watched=True)
        try:
            await engine.load_weights(versions[0])
            memory_mb = [held_mb(engine)]
            found = await standing_still(engine, versions[::-1], updates)
            memory_mb.append(held_mb(engine))
        finally:
            await engine.close()
    torch.set_num_threads(1)  # as many as the engine has
    copied_ms = copy_ms(tensors)
    still = found["still"]
    assert isinstance(still, dict)
    return {
        "size_mb": round(sum(tensor.nbytes for tensor in tensors.values()) / 1e6),
        **found,
        "memory_mb_before_and_after": memory_mb,
        "copy_ms": round(copied_ms, 1),
        "still_ratio": round(still["p50_ms"] / copied_ms, 2),
        "still_p95_ratio": round(still["p95_ms"] / copied_ms, 2),
        "load": os.getloadavg(),
    }


async def whole(rounds: int, updates: int) -> dict[str, object]:
    """The front's processor time and updates in flight, of a tiny model."""
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
        return {**figures, "until_first_response_s": round(start_s, 1), "load": os.getloadavg()}


if __name__ == "__main__":
    asked = read_options(__doc__, rounds=6, updates=(int, "100, and 12 of a model with a size"), size_mb=0)
    measured = (
        of_size(asked.size_mb, asked.updates or 12) if asked.size_mb else whole(asked.rounds, asked.updates or 100)
    )
    tell(asyncio.run(measured))
