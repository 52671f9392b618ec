"""A rollout engine that says what it is told to, and an endpoint over it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import httpx
import numpy as np

from rftd.ops.clock import SystemClock
from rftd.ops.errors import RolloutError
from rftd.ops.tracing.tracer import Tracer
from rftd.streams.events.experience import Span
from rftd.streams.spec.spec import ModelSpec, SamplingSpec
from rftd.workers.datasets.byte_tokenizer import EOS, ByteTokenizer
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.generation.endpoint.server import ModelEndpoint
from rftd.workers.generation.engine import EngineStats, Generation, GenerationRequest
from rftd.workers.generation.model import CallBounds, HttpModel, Model
from rftd.workers.weights.channel import WeightsRef

SPEC = ModelSpec(path="models/tiny", max_model_len=4096, max_prompt_tokens=3000, max_response_tokens=500)


@dataclass
class ScriptedEngine:
    """Gives `replies` in turn, again and again, and fails on one with NUL. Its weights change after the first token."""

    replies: Sequence[str] = ("fine",)
    encode: Callable[[str], list[int]] = field(default_factory=lambda: ByteTokenizer().encode)
    eos: int = EOS
    hold: bool = False
    """Requests wait until `go` is set."""
    steps: asyncio.Semaphore | None = None
    """A token is told to who watches for each of these."""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Condition = field(default_factory=asyncio.Condition)
    running: int = 0
    requests: list[GenerationRequest] = field(default_factory=list)
    drawn: list[Generation] = field(default_factory=list)

    @property
    def version(self) -> tuple[int, int]:
        return (5, 0)

    async def generate(self, request: GenerationRequest) -> Generation:
        reply = self.replies[len(self.requests) % len(self.replies)]
        self.requests.append(request)
        self.running += 1
        try:
            async with self.started:
                self.started.notify_all()
            if self.hold:
                await self.go.wait()
            tokens = (*self.encode(reply), self.eos)[: request.sampling.max_tokens]
            noise = np.random.default_rng(request.sampling.seed).random(len(tokens))
            spans = (Span(4, 0, 0, 1), Span(5, 0, 1, len(tokens))) if len(tokens) > 1 else (Span(5, 0, 0, 1),)
            logprobs = tuple(float(-value) for value in noise)
            if self.steps is not None and request.watch is not None:
                for token, logprob in zip(tokens, logprobs, strict=True):
                    await self.steps.acquire()
                    request.watch([token], [logprob])
            if "\0" in reply:
                raise RolloutError("the engine is broken")
            generation = Generation(
                tokens=tokens,
                logprobs=logprobs,
                spans=spans,
                finish="stop" if tokens[-1] == self.eos or reply.endswith(request.sampling.stop or "\0") else "length",
            )
            self.drawn.append(generation)
            return generation
        finally:
            self.running -= 1
            async with self.started:
                self.started.notify_all()

    async def until(self, condition: Callable[[ScriptedEngine], bool]) -> None:
        """Waits until the engine is in a state."""
        async with self.started:
            await self.started.wait_for(lambda: condition(self))

    async def load_weights(self, weights: WeightsRef) -> str:
        return weights.checksum

    def stats(self) -> EngineStats:
        return EngineStats(tokens_total=0, requests_total=0, running=self.running, waiting=0)

    async def close(self) -> None:
        return None


@asynccontextmanager
async def running_endpoint(tracer: Tracer | None = None) -> AsyncIterator[ModelEndpoint]:
    """An endpoint that serves while the block runs."""
    endpoint = ModelEndpoint(clock=SystemClock(), random_bytes=os.urandom, tracer=tracer)
    # Not in a TaskGroup, which would make a group of what the block raises.
    serving = asyncio.ensure_future(endpoint.run())
    try:
        yield endpoint
    finally:
        serving.cancel()
        await asyncio.wait([serving])
    assert serving.cancelled(), serving


@dataclass
class Asker:
    """A rollout's program: its capability, and a client that uses it."""

    served: HttpModel
    client: httpx.AsyncClient

    async def post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        return await self.client.post(path, json=body, headers=headers)

    async def chat(self, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
        """The answer to a conversation; raises if there is none."""
        response = await self.post("/chat/completions", {"model": "any", "messages": messages, **more})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer


@asynccontextmanager
async def asking(
    endpoint: ModelEndpoint,
    engine: ScriptedEngine,
    *,
    rollout: int = 1,
    bounds: CallBounds | None = None,
    spec: ModelSpec = SPEC,
    tokenizer: Tokenizer | None = None,
    sampling: SamplingSpec | None = None,
    lengths_only: bool = False,
) -> AsyncIterator[Asker]:
    """A rollout that is under way."""
    model = Model(
        engine,
        tokenizer or ByteTokenizer(),
        spec=spec,
        sampling=sampling or SamplingSpec(max_tokens=400),
        rollout=UUID(int=rollout),
        endpoint=endpoint,
    )
    async with model.served(bounds, lengths_only=lengths_only) as served, client_of(served) as client:
        yield Asker(served, client)


def client_of(served: HttpModel) -> httpx.AsyncClient:
    """A client with the rollout's key."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    headers = {"Authorization": f"Bearer {served.api_key}"}
    # Nothing is encrypted here, and to read the machine's certificates takes longer than a call.
    return httpx.AsyncClient(
        base_url=served.base_url, headers=headers, trust_env=False, verify=False, timeout=60, limits=limits
    )


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def message_of(answer: dict[str, Any], choice: int = 0) -> dict[str, Any]:
    """The assistant's message, as a client sends it back."""
    message: dict[str, Any] = answer["choices"][choice]["message"]
    return message
