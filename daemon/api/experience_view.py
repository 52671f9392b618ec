"""One experience with what the log holds of it."""

from __future__ import annotations

import msgspec

from rftd.ops.errors import NotFoundError
from rftd.storage.queries.experiences import ExperienceRow
from rftd.streams import topics
from rftd.streams.codec import decode_as
from rftd.streams.events.experience import ExperienceProduced, Span
from rftd.streams.log import EventLog
from rftd.streams.topics import Partition


class ExperienceView(msgspec.Struct, frozen=True, kw_only=True):
    """One experience; the lists are there if tokens were asked for."""

    experience: ExperienceRow
    spans: list[SpanView]
    tokens: list[int] | None = None
    """Prompt and response ids."""
    loss_mask: list[int] | None = None
    """Of each response token: 1 if it is trained."""
    logprobs: list[float] | None = None
    """Of each response token, under the weights that drew it."""
    steps: list[StepView] = []
    """Of a rollout that consists of several sequences, in the order in which the lists hold them; else empty."""


class SpanView(msgspec.Struct, frozen=True, kw_only=True):
    """Response tokens [start, end) were drawn from these weights."""

    version: int
    generation: int
    start: int
    end: int


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence of several."""

    tokens: int
    """Of prompt and response."""
    prompt_tokens: int
    reward: float


async def with_payload(log: EventLog, row: ExperienceRow, *, tokens: bool) -> ExperienceView:
    """The experience with its payload from the log. Raises NotFoundError if the log no longer holds it."""
    records = await log.read(Partition(topics.EXPERIENCES, row.partition), row.offset, max_records=1)
    if not records or records[0].offset != row.offset:
        raise NotFoundError(f"the log holds no payload of experience {row.id}", where=f"{row.partition}@{row.offset}")
    event = decode_as(records[0], ExperienceProduced)
    spans = [_span(span) for span in event.spans]
    steps = [StepView(tokens=x.tokens, prompt_tokens=x.prompt_tokens, reward=x.reward) for x in event.steps]
    if not tokens:
        return ExperienceView(experience=row, spans=spans, steps=steps)
    return ExperienceView(
        experience=row,
        spans=spans,
        tokens=event.tokens.view().tolist(),
        loss_mask=event.loss_mask.view().tolist(),
        logprobs=event.logprobs.view().tolist(),
        steps=steps,
    )


def _span(span: Span) -> SpanView:
    return SpanView(version=span.version, generation=span.generation, start=span.start, end=span.end)
