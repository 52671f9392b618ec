"""The fake rollout engine: answers without a model, so that everything around it can be tested separately.

The text is drawn from the request's seed and the weights in use alone: with probability `skill` (growing by `gain` with
each weight version) it is the right answer to a prompt `a+b=`, else a random digit. The latency follows from the seed
too, and may have a long tail.
"""

from __future__ import annotations

import asyncio
import math
import re
from typing import Final

import msgspec
import numpy as np

from rftd.ops.clock import Clock
from rftd.ops.errors import RolloutError, WeightsElsewhereError, WorkError
from rftd.streams.events.experience import Span
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.generation.engine import EngineStats, Generation, GenerationRequest, RolloutEngine
from rftd.workers.generation.engine_definition import EngineOpening, RolloutEngineDefinition
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.registry import Channels

_LATENCY_STREAM: Final = 0x6C6174
"""Second seed word of the latency's draw, independent of the answer's."""
_SUM = re.compile(r"(\d+)\s*\+\s*(\d+)\s*=?\s*$")
"""Prompt ending in a sum to compute, such as `12+3=`."""


class FakeArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`engine_args` of the fake engine."""

    skill: float = 0.3
    """Probability of the right answer with weight version 0."""
    gain: float = 0.05
    """Increase of that probability with each weight version."""
    latency_s: float = 0.0
    """Seconds per response; with `latency_sigma` the median."""
    latency_sigma: float = 0.0
    """Standard deviation of the latency's logarithm (log-normal): 0.99 makes the 99th percentile ten medians."""
    latency_cap: float = 30.0
    """Longest latency, in medians."""
    tokens_per_s: float = 0.0
    """Tokens of a response per second of latency, as white space before the answer; 0: the answer alone."""
    hang: bool = False
    """True: no request is ever answered."""
    silent: bool = False
    """True: every answer is empty except for its end."""


class FakeRolloutEngine:
    """Implements `RolloutEngine` without a model; weights come through a channel, from the fake trainer engine."""

    def __init__(self, arguments: FakeArgs, clock: Clock) -> None:
        """Makes an engine without weights."""
        self._args = arguments
        self._clock = clock
        self._tokenizer = ByteTokenizer()
        self._version = (-1, -1)
        self._tokens = self._requests = self._running = 0
        self._closed = asyncio.Event()
        self._channels = Channels()
        self.transfer_s = 0.0
        """See `TransferTimed`."""

    @property
    def version(self) -> tuple[int, int]:
        """Version and generation loaded last; version -1 before the first load."""
        return self._version

    async def generate(self, request: GenerationRequest) -> Generation:
        """Returns an answer after the drawn latency, with both versions in its spans if weights changed meanwhile.
        Raises RolloutError without weights, and after `close`.
        """
        self._check_not_closed()
        if self._version[0] < 0:
            raise RolloutError("the engine has no weights")
        self._running += 1
        # Weights may change during the answer; its spans then name both versions, as a real engine's do.
        start = self._version
        try:
            if self._args.hang:
                await self._closed.wait()
            if latency_s := latency_of(self._args, request.sampling.seed):
                await self._clock.sleep(latency_s)
        finally:
            self._running -= 1
        self._check_not_closed()
        tokens = [*self._tokenizer.encode(self._answer(request)), *self._tokenizer.eos_ids[:1]]
        text_tokens = min(round(latency_s * self._args.tokens_per_s), request.sampling.max_tokens)
        tokens = [*self._tokenizer.encode(" " * (text_tokens - len(tokens))), *tokens][: request.sampling.max_tokens]
        self._tokens += len(tokens)
        self._requests += 1
        spans = (
            (Span(*start, 0, len(tokens)),)
            if start == self._version or len(tokens) < 2
            else (Span(*start, 0, 1), Span(*self._version, 1, len(tokens)))
        )
        return Generation(
            tokens=tuple(tokens),
            logprobs=(-0.5,) * len(tokens),
            processed_logprobs=(-0.5,) * len(tokens) if request.sampling.processed_logprobs else (),
            spans=spans,
            finish="stop" if tokens[-1] in self._tokenizer.eos_ids else "length",
        )

    async def load_weights(self, weights: WeightsRef) -> str:
        """Verifies published weights, and answers with their version from now on. Raises RolloutError for unusable
        weights.
        """
        began_s = self._clock.monotonic_s()
        await asyncio.to_thread(self._open, weights)
        self.transfer_s = self._clock.monotonic_s() - began_s
        self._version = (weights.version, weights.generation)
        return weights.checksum

    def stats(self) -> EngineStats:
        """Returns the counters of this engine's requests; nothing ever waits."""
        return EngineStats(tokens_total=self._tokens, requests_total=self._requests, running=self._running, waiting=0)

    async def close(self) -> None:
        """Closes the engine: hanging requests end, and later ones raise RolloutError."""
        self._closed.set()

    def _check_not_closed(self) -> None:
        """Raises RolloutError after `close`."""
        if self._closed.is_set():
            raise RolloutError("the engine was closed")

    def _open(self, weights: WeightsRef) -> None:
        """Opens published weights through their channel, as a check of their bytes. Raises RolloutError."""
        try:
            with self._channels.of(weights.method).open(weights):
                return
        except WeightsElsewhereError:
            raise
        except WorkError as error:
            raise RolloutError(error.what, where=error.where) from error

    def _answer(self, request: GenerationRequest) -> str:
        """Returns the text of an answer: the right sum at temperature 0, or with probability `skill` + `gain` times the
        version; otherwise a random digit. Empty for a `silent` engine.
        """
        # Drawn from the seed and the version alone, never from the order of requests: a replay must draw the same
        # answers.
        random = np.random.default_rng([request.sampling.seed % 2**63, max(0, self._version[0])])
        if self._args.silent:
            return ""
        match = _SUM.search(self._tokenizer.decode(request.prompt))
        skilled = random.random() < self._args.skill + self._args.gain * max(0, self._version[0])
        if match and (skilled or request.sampling.temperature == 0):
            return str(int(match[1]) + int(match[2]))
        return str(int(random.integers(0, 10)))


def latency_of(args: FakeArgs, seed: int) -> float:
    """Returns the latency in seconds of a request with this seed, equal each time, whatever the weights."""
    if not args.latency_s or not args.latency_sigma:
        return args.latency_s
    drawn = np.random.default_rng([seed % 2**63, _LATENCY_STREAM]).standard_normal()
    return args.latency_s * min(math.exp(args.latency_sigma * drawn), args.latency_cap)


async def _open(opening: EngineOpening[FakeArgs]) -> RolloutEngine:
    """Makes the engine for an explorer."""
    return FakeRolloutEngine(opening.arguments, opening.clock)


ENGINE: Final = RolloutEngineDefinition(arguments=FakeArgs, open=_open)
"""Definition of the engine for the registry."""
