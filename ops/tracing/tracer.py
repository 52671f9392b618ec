"""`Tracer` creates only spans to be exported; `current()` is the open `TraceSpan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from enum import IntEnum
from random import Random
from types import TracebackType
from typing import Final, Protocol, Self, TypeAlias
from uuid import UUID

from rftd.ops.clock import Clock
from rftd.ops.errors import RftdError
from rftd.ops.tracing.conventions import CANCELLED, ERROR_TYPE
from rftd.ops.tracing.trace_context import TraceContext, root_of

Attribute: TypeAlias = str | int | float | bool | Sequence[str]
"""Value of an attribute."""
NO_PARENT: Final = 0
"""Parent id of the first span of a trace."""
_RANDOM_BITS: Final = 56
"""Number of trailing bits of a trace id used for sampling: those defined as random by W3C's Level 2."""


class SpanKind(IntEnum):
    """The role of a span between processes, with the numbers of OTLP."""

    INTERNAL = 1
    """Work within the process."""
    SERVER = 2
    """Answer to a request."""
    CLIENT = 3
    """Request to another process."""
    PRODUCER = 4
    """Append of records."""
    CONSUMER = 5
    """Processing of records."""


class TraceSpan:
    """An operation exported at the end. As a context manager, the span is current inside the block, and ends with the
    block.
    """

    __slots__ = (
        "_token",
        "attributes",
        "context",
        "end_ns",
        "error",
        "kind",
        "links",
        "name",
        "parent_id",
        "remote_parent",
        "start_ns",
        "tracer",
    )

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        context: TraceContext,
        *,
        start_ns: int,
        kind: SpanKind = SpanKind.INTERNAL,
        parent_id: int = NO_PARENT,
        remote_parent: bool = False,
        attributes: Mapping[str, Attribute] | None = None,
        links: Sequence[TraceContext] = (),
    ) -> None:
        """`remote_parent` is true if another process made the parent."""
        self.tracer = tracer
        self.name = name
        self.context = context
        self.kind = kind
        self.parent_id = parent_id
        self.remote_parent = remote_parent
        self.attributes: dict[str, Attribute] = dict(attributes or {})
        self.links = links
        self.start_ns = start_ns
        self.end_ns = 0
        """0 while the span is open."""
        self.error = ""
        """Type of the error that ended the span; empty for a successful one."""
        self._token: Token[TraceSpan | None] | None = None

    def child(
        self,
        name: str,
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        attributes: Mapping[str, Attribute] | None = None,
        links: Sequence[TraceContext] = (),
    ) -> TraceSpan:
        """Returns a new child span, begun now, in the trace of this span."""
        return self.tracer.below(self.context, name, kind, attributes=attributes, links=links)

    def fail(self, error: BaseException | str) -> None:
        """Marks the span as failed, by the error's type alone: texts may quote prompts."""
        self.error = error if isinstance(error, str) else error_type(error)
        self.attributes[ERROR_TYPE] = self.error

    def end(self, end_ns: int | None = None) -> None:
        """Ends the span, now or at `end_ns`, and exports it. A second call has no effect."""
        if not self.end_ns:
            # The wall clock may have been set back meanwhile.
            self.end_ns = max(self.start_ns, self.tracer.now_ns() if end_ns is None else end_ns)
            self.tracer.export(self)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Makes the span current while the block runs, without ending it."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        assert self._token is not None
        _current.reset(self._token)
        if error is not None:
            self.fail(error)
        self.end()


_current: Final[ContextVar[TraceSpan | None]] = ContextVar("span", default=None)
"""The open span of the present task."""

current: Final = _current.get
"""Returns the span open in this context; None without one, as always with tracing off. The only tracing call on the hot
path.
"""


@contextmanager
def untraced() -> Iterator[None]:
    """A context without a current span: spans opened inside start a trace of their own, or none."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def error_type(error: BaseException) -> str:
    """Returns the code of an error of rftd, else the name of the class."""
    if isinstance(error, RftdError):
        return error.code
    name = type(error).__qualname__
    # By its name: a command without an event loop does not import asyncio.
    return CANCELLED if name == "CancelledError" else name


def current_traceparent() -> str | None:
    """Returns the header `traceparent` of the open span; None without one."""
    span = current()
    return None if span is None else span.context.traceparent


class SpanSink(Protocol):
    """A receiver of ended spans, called from any thread. Never blocks and never raises."""

    def put(self, span: TraceSpan) -> None:
        """Accepts a span that has ended; a full sink drops it."""
        ...

    @property
    def dropped_total(self) -> int:
        """Number of spans that never arrived anywhere."""
        ...


class Tracer:
    """The tracer of a process.

    A trace begun by another process is sampled if that process sampled it; a trace begun here is sampled by its id,
    with an equal share in every process. Rare and important spans use `always`.
    """

    def __init__(self, sink: SpanSink, *, clock: Clock, random: Random, ratio: float) -> None:
        """`random` generates the ids of spans, and is used for nothing else; `ratio` is the share of traces."""
        self._sink = sink
        self._clock = clock
        self._random = random
        self._bound = round(ratio * (1 << _RANDOM_BITS))

    def begin(
        self,
        name: str,
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        parent: TraceContext | None = None,
        cause: UUID | None = None,
        always: bool = False,
        attributes: Mapping[str, Attribute] | None = None,
        links: Sequence[TraceContext] = (),
    ) -> TraceSpan | None:
        """Returns a span below another process's span, or the root of a trace; None for an unsampled trace.

        The root's ids are derived from its `cause`, if given.
        """
        if parent is not None:
            if not (parent.sampled or always):
                return None
            return self.below(parent, name, kind, attributes=attributes, links=links, remote=True)
        context = self.root(cause, always=always)
        if not context.sampled:
            return None
        return TraceSpan(
            self, name, context, kind=kind, attributes=attributes, links=links, start_ns=self._clock.now_ns()
        )

    def always(
        self,
        name: str,
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        parent: TraceContext | None = None,
        attributes: Mapping[str, Attribute] | None = None,
        links: Sequence[TraceContext] = (),
    ) -> TraceSpan:
        """Returns a span regardless of sampling, for rare and important work.

        The span's parent is `parent`, else the open span; without either, the span is the root of a trace.
        """
        if parent is None and (open_span := current()) is not None:
            return open_span.child(name, kind, attributes=attributes, links=links)
        span = self.begin(name, kind, parent=parent, always=True, attributes=attributes, links=links)
        assert span is not None
        return span

    def below(
        self,
        parent: TraceContext,
        name: str,
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        attributes: Mapping[str, Attribute] | None = None,
        links: Sequence[TraceContext] = (),
        remote: bool = False,
    ) -> TraceSpan:
        """Returns a span below another one, begun now; `remote` is true if another process made the parent."""
        return TraceSpan(
            self,
            name,
            TraceContext(parent.trace_id, self._new_id(64), True),
            kind=kind,
            parent_id=parent.span_id,
            remote_parent=remote,
            attributes=attributes,
            links=links,
            start_ns=self._clock.now_ns(),
        )

    def root(self, cause: UUID | None = None, *, always: bool = False) -> TraceContext:
        """Returns the context of a new trace's root span; with a `cause`, both ids are derived from it. `always`
        samples the trace.
        """
        trace_id, span_id = root_of(cause) if cause is not None else (self._new_id(128), self._new_id(64))
        return TraceContext(trace_id, span_id, always or self.samples(trace_id))

    def record(
        self,
        name: str,
        context: TraceContext,
        kind: SpanKind,
        *,
        start_ns: int,
        attributes: Mapping[str, Attribute],
        error: str = "",
    ) -> None:
        """Exports a root span ending now, with a context already known to other processes; `error` is the type of
        error.
        """
        span = TraceSpan(self, name, context, kind=kind, attributes=attributes, start_ns=start_ns)
        if error:
            span.fail(error)
        span.end()

    def samples(self, trace_id: int) -> bool:
        """True if a trace with this id, beginning in this process, is sampled."""
        return trace_id & ((1 << _RANDOM_BITS) - 1) < self._bound

    def wants(self, parent: TraceContext | None, cause: UUID) -> bool:
        """True if `begin` would create a span for the arguments: a check before the attributes are computed."""
        return parent.sampled if parent is not None else self.samples(root_of(cause)[0])

    def export(self, span: TraceSpan) -> None:
        """Hands an ended span to the sink, without waiting for its transfer."""
        self._sink.put(span)

    @property
    def dropped_total(self) -> int:
        """Number of created spans that never arrived at the receiver."""
        return self._sink.dropped_total

    def now_ns(self) -> int:
        """Returns the current time for spans, Unix time in nanoseconds."""
        return self._clock.now_ns()

    def _new_id(self, bits: int) -> int:
        """Returns a random id other than 0."""
        return self._random.getrandbits(bits) or 1
