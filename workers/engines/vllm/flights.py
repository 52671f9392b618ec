"""`RequestFlight`: a request under way in vLLM, and the weights that drew each of its tokens."""

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
    """New weights that came into use while a request was under way."""

    version: tuple[int, int]
    at_s: float
    """The machine's monotonic clock at that moment."""
    drawn: int | None
    """The number of tokens that the request had drawn; None if the worker had no such request."""


@dataclass(slots=True, eq=False)
class RequestFlight:
    """One request under way."""

    request: GenerationRequest
    name: str
    """Its id in vLLM, which adds to it."""
    version: tuple[int, int]
    """The weights in use when it was handed over."""
    swaps: list[WeightSwap] = field(default_factory=list)
    collector: Any = None
    """Takes what vLLM answers; None until the request was handed over."""
    told: int = 0
    """The number of tokens that the request's watch was told."""

    def tell(self, output: Any) -> None:
        """Tells the watch what was drawn since the last time. Raises RolloutError if that is no part of a response."""
        completion = output.outputs[0]
        tokens = completion.token_ids
        if self.request.watch is not None and len(tokens) > self.told:
            logprobs, _ = self._logprobs(completion.logprobs, len(tokens))
            self.request.watch(tokens[self.told :], logprobs[self.told :])
            self.told = len(tokens)

    def generation(self, output: Any) -> Generation:
        """The response, now that vLLM has given its last output. Raises RolloutError if that is none."""
        completion = output.outputs[0]
        finish = completion.finish_reason
        if finish not in ("stop", "length"):
            raise RolloutError(f"vLLM ended request {self.request.id} with {finish!r}: {completion.stop_reason}")
        tokens = tuple(completion.token_ids)
        logprobs, processed = self._logprobs(completion.logprobs, len(tokens))
        for at, logprob in enumerate(logprobs):
            if logprob != logprob:  # NaN
                raise RolloutError(f"the model gave no number at token {at} of {self.request.id}")
        return Generation(
            tokens=tokens,
            logprobs=logprobs,
            processed_logprobs=processed,
            spans=tuple(self._spans(len(tokens), output.metrics.scheduled_ts)),
            finish=finish,
        )

    def _logprobs(self, found: Any, length: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Log-probabilities, and processed ones if they were asked for  # [R], [R or 0]

        Raises RolloutError for fewer of them than tokens.
        """
        # The sampler's columns: one for each token, or two.
        columns = 2 if self.request.sampling.processed_logprobs else 1
        flat = found.logprobs if found is not None else ()
        if len(flat) < columns * length:
            raise RolloutError(
                f"vLLM answered request {self.request.id} half: {length} tokens and {len(flat)} log-probabilities of "
                f"{columns * length}",
                fix="this is a defect of vLLM, or of its version here",
            )
        # A stop text is found after the fact: what was drawn behind it is no part of the response.
        flat = flat[: columns * length]
        return tuple(flat[::columns]), tuple(flat[1::columns]) if columns == 2 else ()

    def _spans(self, length: int, scheduled_s: float) -> Iterator[Span]:
        """The weights of each token. `scheduled_s`: the monotonic clock when the request first got a slot."""
        begun = [(self.version, 0)]
        for swap in self.swaps:
            # A worker without the request had not begun it, or had ended it already.
            drawn = swap.drawn if swap.drawn is not None else 0 if scheduled_s > swap.at_s else length
            # A step may draw one token more than the response has.
            begun.append((swap.version, min(drawn, length)))
        ends = [first for _, first in begun[1:]] + [length]
        for ((version, generation), start), end in zip(begun, ends, strict=True):
            if end > start:
                yield Span(version, generation, start, end)


class GroupAnswers:
    """Implements `Answers` for requests that were made together."""

    def __init__(self, expected: int) -> None:
        self._left = expected
        self._done: list[tuple[int, Generation | RolloutError]] = []
        self._more = asyncio.Event()

    def put(self, number: int, answer: Generation | RolloutError) -> None:
        """The answer to the request of this number."""
        self._done.append((number, answer))
        self._left -= 1
        self._more.set()

    async def some(self) -> Sequence[tuple[int, Generation | RolloutError]]:
        if not self._done and self._left:
            self._more.clear()
            await self._more.wait()
        done = self._done
        self._done = []
        return done
