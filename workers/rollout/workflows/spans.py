"""Spans of response tokens, put one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from rftd.streams.events.experience import SamplingSpan, Span

S = TypeVar("S", Span, SamplingSpan)


def append_span(spans: list[S], span: S, start: int, end: int) -> None:
    """Appends the span with these ends. It is joined to the last one where both touch and say the same."""
    last = spans[-1] if spans else None
    if last is not None and last.end == start and moved(span, last.start, last.end) == last:
        spans.pop()
        start = last.start
    spans.append(moved(span, start, end))


def moved(span: S, start: int, end: int) -> S:
    """The span with these ends."""
    return msgspec.structs.replace(span, start=start, end=end)


def shifted(parts: Iterable[tuple[Sequence[S], int]]) -> Iterator[S]:
    """The spans of parts that follow one another, each given with its number of response tokens."""
    place = 0
    for spans, length in parts:
        for span in spans:
            yield moved(span, place + span.start, place + span.end)
        place += length
