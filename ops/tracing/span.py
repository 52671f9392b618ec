"""`TraceSpan`: one operation of a trace, from its begin to its end; `current()` is the one that is open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from rftd.ops.errors import RftdError
from rftd.ops.tracing.conventions import CANCELLED, ERROR_TYPE
from rftd.ops.tracing.trace_context import TraceContext

if TYPE_CHECKING:
    from rftd.ops.tracing.tracer import Tracer

Attribute: TypeAlias = str | int | float | bool | Sequence[str]
NO_PARENT: Final = 0


class SpanKind(IntEnum):
    """The part that a span plays between processes, with the numbers of OTLP."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3
    PRODUCER = 4
    CONSUMER = 5


class TraceSpan:
    """An operation that is exported when it ends. As a block it is current meanwhile, and ends with the block."""

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
        """`remote_parent` says that another process made the parent."""
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
        """0 while it is open."""
        self.error = ""
        """The type of the error that it ended with; empty if it ended well."""
        self._token: Token[TraceSpan | None] | None = None

    def child(
        self,
        name: str,
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        attributes: Mapping[str, Attribute] | None = None,
        links: Sequence[TraceContext] = (),
    ) -> TraceSpan:
        """A new span below this one, begun now."""
        return self.tracer.below(self.context, name, kind, attributes=attributes, links=links)

    def fail(self, error: BaseException | str) -> None:
        """Notes that it ended with an error, by the error's type alone: texts may quote prompts."""
        self.error = error if isinstance(error, str) else error_type(error)
        self.attributes[ERROR_TYPE] = self.error

    def end(self, end_ns: int | None = None) -> None:
        """Ends it, now unless it is said when, and exports it. A second end has no effect."""
        if not self.end_ns:
            # The wall clock may have been set back meanwhile.
            self.end_ns = max(self.start_ns, self.tracer.now_ns() if end_ns is None else end_ns)
            self.tracer.export(self)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Makes it current while the block runs, and leaves its end to somebody else."""
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

current: Final = _current.get
"""The span that is open where it is called; None where nothing is traced. It is the one check of the hot path."""


@contextmanager
def untraced() -> Iterator[None]:
    """Lets no span be current while the block runs: what happens in it is traced by itself, or not at all."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def error_type(error: BaseException) -> str:
    """The code of an error of ours, else the name of its class."""
    if isinstance(error, RftdError):
        return error.code
    name = type(error).__qualname__
    # By its name: a command that needs no loop imports none.
    return CANCELLED if name == "CancelledError" else name


def current_traceparent() -> str | None:
    """The header of the span that is open; None without one."""
    span = current()
    return None if span is None else span.context.traceparent
