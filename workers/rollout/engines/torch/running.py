"""`Running`: a request on its way through the engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rftd.ops.errors import RolloutError
from rftd.streams.events.experience import Span
from rftd.workers.rollout.engine import Generation, GenerationRequest


@dataclass(slots=True, eq=False)
class Running:
    """The tokens of a request so far, and the weights that drew them."""

    request: GenerationRequest
    limit: int
    """The most tokens that it may draw."""
    key: int
    """The key of its seed, for `noise`."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    processed: list[float] = field(default_factory=list)
    """Log-probabilities in the distributions that the tokens were drawn from, where the request asks for them."""
    marks: list[tuple[int, int, int]] = field(default_factory=list)
    """(version, generation, index of the first token drawn from it)"""

    def mark(self, version: tuple[int, int]) -> None:
        """The next token is drawn from other weights than the last."""
        self.marks.append((*version, len(self.tokens)))

    def generation(self, finish: str) -> Generation:
        """The response, now that it is complete."""
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
        ends = [start for _, _, start in self.marks[1:]] + [len(self.tokens)]
        for (version, generation, start), end in zip(self.marks, ends, strict=True):
            # Weights may be swapped twice between two tokens: the first of them drew none.
            if end > start:
                yield Span(version, generation, start, end)


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that left: with its response, or with what went wrong."""

    running: Running
    result: Generation | RolloutError
