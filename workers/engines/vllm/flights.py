"""`RequestFlight`: a request running in vLLM, with the weight version of each token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rftd.ops.errors import RolloutError
from rftd.streams.events.experience import Span
from rftd.workers.generation.engine import Generation, GenerationRequest


@dataclass(frozen=True, slots=True)
class WeightSwap:
    """New weights loaded while a request was running."""

    version: tuple[int, int]
    """Version and generation of the new weights."""
    at_s: float
    """Machine's monotonic clock at the swap, in seconds."""
    drawn: int | None
    """Number of tokens drawn by the request before the swap; None if the worker had no such request."""


@dataclass(slots=True, eq=False)
class RequestFlight:
    """A request running in vLLM, with the swaps of weights since its submission."""

    request: GenerationRequest
    """The request being answered."""
    name: str
    """Request id in vLLM, which appends to it."""
    version: tuple[int, int]
    """Weight version in use at the request's submission."""
    swaps: list[WeightSwap] = field(default_factory=list)
    """Swaps of weights during the request, in order."""
    collector: Any = None
    """Collector of vLLM's answers; None until the request was submitted."""
    told: int = 0
    """Number of tokens reported to the request's `watch` so far."""

    def tell(self, output: Any) -> None:
        """Reports newly drawn tokens to the request's `watch`. Raises RolloutError if the output is not a partial
        response.
        """
        completion = output.outputs[0]
        tokens = completion.token_ids
        if self.request.watch is not None and len(tokens) > self.told:
            logprobs, _ = self._logprobs(completion.logprobs, len(tokens))
            self.request.watch(tokens[self.told :], logprobs[self.told :])
            self.told = len(tokens)

    def generation(self, output: Any) -> Generation:
        """Returns the response from vLLM's last output. Raises RolloutError for an output that is incomplete or has
        NaN.
        """
        completion = output.outputs[0]
        finish = completion.finish_reason
        if finish not in ("stop", "length"):
            raise RolloutError(f"vLLM ended request {self.request.id} with {finish!r}: {completion.stop_reason}")
        tokens = tuple(completion.token_ids)
        logprobs, processed = self._logprobs(completion.logprobs, len(tokens))
        for at, logprob in enumerate(logprobs):
            if logprob != logprob:  # NaN
                raise RolloutError(f"the model gave NaN at token {at} of {self.request.id}")
        return Generation(
            tokens=tokens,
            logprobs=logprobs,
            processed_logprobs=processed,
            spans=tuple(self._spans(len(tokens), output.metrics.scheduled_ts)),
            finish=finish,
        )

    def _logprobs(self, reported: Any, length: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Returns log-probabilities, and processed ones if requested  # [R], [R or 0]

        Raises RolloutError for fewer of them than tokens.
        """
        # The sampler's columns: one for each token, or two.
        columns = 2 if self.request.sampling.processed_logprobs else 1
        flat = reported.logprobs if reported is not None else ()
        if len(flat) < columns * length:
            raise RolloutError(
                f"vLLM's answer to request {self.request.id} is incomplete: {length} tokens and "
                f"{len(flat)} log-probabilities of {columns * length}",
                fix="this is a bug in vLLM, or in the installed version",
            )
        # A stop text is found after the fact: tokens drawn behind it are not in the response.
        flat = flat[: columns * length]
        return tuple(flat[::columns]), tuple(flat[1::columns]) if columns == 2 else ()

    def _spans(self, length: int, scheduled_s: float) -> Iterator[Span]:
        """Yields the weight versions of the tokens. `scheduled_s`: monotonic clock at the request's first slot."""
        begun = [(self.version, 0)]
        for swap in self.swaps:
            # A worker without the request either had not begun it, or had already ended it.
            drawn = swap.drawn if swap.drawn is not None else 0 if scheduled_s > swap.at_s else length
            # A step may draw one token more than the response has.
            begun.append((swap.version, min(drawn, length)))
        ends = [first for _, first in begun[1:]] + [length]
        for ((version, generation), start), end in zip(begun, ends, strict=True):
            if end > start:
                yield Span(version, generation, start, end)


class GroupAnswers:
    """Implements `Answers` for requests made together."""

    def __init__(self, expected: int) -> None:
        """Awaits `expected` answers."""
        self._expected = expected
        self._done: list[tuple[int, Generation | RolloutError]] = []
        self._more = asyncio.Event()

    def put(self, number: int, answer: Generation | RolloutError) -> None:
        """Records the answer to the request of this number."""
        self._done.append((number, answer))
        self._expected -= 1
        self._more.set()

    async def some(self) -> Sequence[tuple[int, Generation | RolloutError]]:
        """Returns the answers arrived since the last call, waiting for at least one; empty after the last."""
        if not self._done and self._expected:
            self._more.clear()
            await self._more.wait()
        done = self._done
        self._done = []
        return done
