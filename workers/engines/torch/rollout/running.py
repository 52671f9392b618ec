"""`Running`: a request in the engine, with its drawn tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rftd.ops.errors import RolloutError
from rftd.streams.events.experience import Span
from rftd.workers.generation.engine import Generation, GenerationRequest


@dataclass(slots=True, eq=False)
class Running:
    """A request being computed: its drawn tokens, with the weight versions that drew them."""

    request: GenerationRequest
    """The request being answered."""
    limit: int
    """Maximum tokens to draw."""
    key: int
    """Key of the seed, for `noise`."""
    tokens: list[int] = field(default_factory=list)
    """Tokens drawn so far."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each drawn token."""
    processed: list[float] = field(default_factory=list)
    """Log-probabilities after filters and penalties, if requested."""
    marks: list[tuple[int, int, int]] = field(default_factory=list)
    """Weight changes: (version, generation, index of the first token drawn by them)."""

    def mark(self, version: tuple[int, int]) -> None:
        """Records new weights for the next token."""
        self.marks.append((*version, len(self.tokens)))

    def generation(self, finish: str) -> Generation:
        """Returns the complete response, with a span for each weight version."""
        if len(self.marks) == 1:
            ((version, number, start),) = self.marks
            spans: tuple[Span, ...] = (Span(version, number, start, len(self.tokens)),)
        else:
            spans = tuple(self._spans())
        return Generation(
            tokens=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            processed_logprobs=tuple(self.processed),
            spans=spans,
            finish=finish,
        )

    def _spans(self) -> Iterator[Span]:
        """Yields the range of tokens drawn by each weight version; a version without tokens is skipped."""
        ends = [start for _, _, start in self.marks[1:]] + [len(self.tokens)]
        for (version, generation, start), end in zip(self.marks, ends, strict=True):
            # Weights may be swapped twice between two tokens: the first swap drew none.
            if end > start:
                yield Span(version, generation, start, end)


@dataclass(frozen=True, slots=True)
class Finished:
    """A request removed from the batch, with its response or its error."""

    running: Running
    """The request."""
    result: Generation | RolloutError
    """The response, or the error."""


class Waiter(Protocol):
    """Receives the outcomes of requests, on the event loop."""

    def take(self, running: Running, outcome: Generation | RolloutError) -> None:
        """Receives the response or the error of one finished request."""
        ...


class Single:
    """Waits for the response to one request, as a future."""

    def __init__(self) -> None:
        """Creates the future on the running event loop."""
        self.response: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()

    def take(self, running: Running, outcome: Generation | RolloutError) -> None:
        """Completes the future, unless the caller was cancelled."""
        # The caller was cancelled after the decode thread had finished the request.
        if self.response.done():
            return
        if isinstance(outcome, Generation):
            self.response.set_result(outcome)
        else:
            self.response.set_exception(outcome)


class Several:
    """Collects the outcomes of requests made together; implements `Answers`."""

    def __init__(self) -> None:
        """Begins without requests."""
        self._numbers: dict[Running, int] = {}
        self._done: list[tuple[int, Generation | RolloutError]] = []
        self._more: asyncio.Future[None] | None = None

    def expect(self, number: int, running: Running) -> None:
        """Registers a submitted request under its number."""
        self._numbers[running] = number

    def refuse(self, number: int, error: RolloutError) -> None:
        """Records the error of a request that can never run."""
        self._done.append((number, error))

    def take(self, running: Running, outcome: Generation | RolloutError) -> None:
        """Records an outcome, and wakes a waiting `some`."""
        self._done.append((self._numbers.pop(running), outcome))
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def some(self) -> Sequence[tuple[int, Generation | RolloutError]]:
        """Waits for outcomes, and returns those arrived since the last call; empty once all were returned."""
        if not self._done and self._numbers:
            self._more = asyncio.get_running_loop().create_future()
            await self._more
        done = self._done
        self._done = []
        return done
