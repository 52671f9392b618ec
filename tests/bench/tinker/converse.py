"""Says everything to a Tinker server that the product may say, so that a recorder beside it has each kind of answer.

`tinker_skyrl.py --record FILE` calls it; tests/integration/test_tinker_recording.py holds the fake of the protocol to
what came back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import httpx
import numpy as np

from rftd.ops.errors import DataError, RftdError, RolloutError, WorkError
from rftd.workers.engines.tinker.service import AdamStep, AdapterShape, ServiceSampling, TinkerService, TokenRow

KEY: Final = "tml-open-server"
"""An open server takes any; this is its form."""
SHAPE: Final = AdapterShape(rank=32, seed=1, train_mlp=True, train_attn=True, train_unembed=False)
ADAM: Final = AdamStep(rate=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, clip=1.0)
DRAW: Final = ServiceSampling(max_tokens=3, temperature=1.0, top_p=1.0, top_k=-1, seed=7, stop=None)
ROWS: Final = 2
ROOM: Final = 8
"""More runs than the server keeps at once (server.py)."""


def converse(service: TinkerService, url: str, base_model: str, told: Callable[[str], None]) -> None:
    """Asks for each thing once, and for what is not there. Raises AssertionError for an answer that is none."""
    assert service.answers()
    told("a new run")
    run = service.new_run(base_model, SHAPE)
    told("a pass without a gradient")
    run.forward(rows("weights"))
    told("gradients and steps")
    run.gradient(rows("weights"), "cross_entropy", {})
    run.step(ADAM)
    run.gradient(rows("advantages", "logprobs"), "importance_sampling", {})
    run.step(ADAM)
    run.gradient(rows("advantages", "logprobs"), "ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2})
    run.step(ADAM)
    run.step(ADAM, rows("weights"))
    told("states and weights")
    state = run.save_state("step-1")
    weights = run.save_weights("v1")()
    assert service.has(state)
    assert service.has(weights)
    told("a response")
    asyncio.run(drawn(service, weights))
    told("what is not asked so")
    misspeak(url, run.id, state)
    told("runs that go on from a state")
    service.run_from(state, base_model, optimizer=True).step(ADAM, rows("weights"))
    service.run_from(state, base_model, optimizer=False)
    told("a run for which there is no room")
    fill(service, base_model)
    refused(WorkError, lambda: service.run_from(state, base_model, optimizer=True))
    told("what is not there")
    service.delete(state)
    service.delete(state)
    assert not service.has(state)
    assert not service.has("tinker://model_0/weights/none")
    refused(DataError, lambda: service.run_from(state, base_model, optimizer=True))
    refused(DataError, lambda: service.run_from("tinker://model_0/weights/none", base_model, optimizer=True))
    with suppress(RolloutError):
        asyncio.run(drawn(service, "tinker://model_0/sampler_weights/none"))
        raise AssertionError("drawn from weights that are not there")
    service.close()


def fill(service: TinkerService, base_model: str) -> None:
    """Begins runs until the server has no room for another. Raises AssertionError if it always has."""
    for _ in range(ROOM):
        try:
            service.new_run(base_model, SHAPE)
        except WorkError:
            return
    raise AssertionError(f"there is room for {ROOM} runs")


def misspeak(url: str, run: str, state: str) -> None:
    """Sends what no client of the package would, for the errors. Raises AssertionError for another status."""
    step = {"adam_params": {"learning_rate": 0.5}, "model_id": run, "seq_id": 3, "type": "optim_step"}
    load = {"model_id": run, "seq_id": 99, "path": state, "optimizer": True, "type": "load_weights"}
    for status, what, asked in (
        (404, "retrieve_future", {"request_id": "999999"}),
        (415, "forward_backward", {"model_id": run}),
        (404, "optim_step", step | {"model_id": "model_0"}),
        (409, "optim_step", step),
        (422, "optim_step", step | {"adam_params": {"learning_rate": "fast"}}),
        (400, "load_weights", load),
    ):
        found = post(url, what, asked)
        assert found.status_code == status, (what, asked, found.status_code, found.text)
    # What fails once it is begun.
    begun = post(url, "save_weights", {"model_id": "model_0", "path": "none", "type": "save_weights"})
    failed = post(url, "retrieve_future", {"request_id": begun.json()["request_id"]})
    assert failed.status_code == 400, (failed.status_code, failed.text)


def post(url: str, what: str, asked: dict[str, object]) -> httpx.Response:
    """The answer to a request that no client makes."""
    return httpx.post(f"{url}/api/v1/{what}", json=asked, headers={"x-api-key": KEY}, timeout=60.0)


def refused(kind: type[RftdError], asked: Callable[[], object]) -> None:
    """Raises AssertionError unless the request is refused with an error of this kind."""
    try:
        asked()
    except kind:
        return
    raise AssertionError(f"not refused with {kind.__name__}")


async def drawn(service: TinkerService, path: str) -> None:
    """One response of the weights of a path."""
    await service.sampler(path).sample((5, 6), DRAW)


def rows(*columns: str) -> list[TokenRow]:
    """Short sequences with these columns."""
    random = np.random.default_rng(1)
    made = []
    for length in range(4, 4 + ROWS):
        tokens = random.integers(3, 60, length)
        values = {name: np.linspace(-1.0, -0.5, length - 1, dtype=np.float32) for name in columns}
        if "weights" in values:
            values["weights"] = np.ones(length - 1, np.float32)
        made.append(TokenRow(tokens=tokens[:-1], targets=tokens[1:], columns=values))
    return made
