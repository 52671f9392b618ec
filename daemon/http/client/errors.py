"""The errors of `rftd.ops.errors`, made again from answers of the daemon."""

from __future__ import annotations

from collections.abc import Iterator

from rftd.daemon.http.views.problem import Problem
from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import (
    ConflictError,
    NotFoundError,
    RftdError,
    UnreachableError,
    UsageError,
    WaitTimeoutError,
)

_BY_STATUS: dict[int, type[RftdError]] = {
    404: NotFoundError,
    409: ConflictError,
    503: UnreachableError,
    504: WaitTimeoutError,
}


class SeveralErrors(UsageError):
    """The request has more than one thing wrong."""

    def __init__(self, what: str, errors: tuple[RftdError, ...]) -> None:
        super().__init__(what)
        self.errors = errors

    def __str__(self) -> str:
        return "\n\n".join(str(error) for error in self.errors)


def error_of(status: int, body: bytes, url: str) -> RftdError:
    """The error that an answer carries."""
    try:
        problem = json_decoder(Problem).decode(body)
    except UNREADABLE:
        return stranger(status, url)
    kind = kind_of(problem.code, status)
    if problem.errors:
        found = tuple(
            kind_of(part.code, status)(part.what, field=part.field, where=part.where, fix=part.fix)
            for part in problem.errors
        )
        return SeveralErrors(problem.detail, found)
    return kind(problem.detail, field=problem.field, where=problem.where, fix=problem.fix)


def stranger(status: int, url: str) -> UnreachableError:
    """The error for an answer that no daemon of this release gives, whatever its status."""
    return UnreachableError(
        f"the answer has status {status} and is none of rftd's",
        where=url,
        fix="is another program on this port, or a daemon of another release?",
    )


def kind_of(code: str, status: int) -> type[RftdError]:
    """The class with this code; of one that this release does not know, what its HTTP status means."""
    for kind in known_errors():
        # Classes with arguments of their own cannot be made of a problem's fields.
        if kind.code == code and kind.__init__ is RftdError.__init__:
            return kind
    fallback = _BY_STATUS.get(status, UsageError if status < 500 else RftdError)
    # A class of its own for a code from a newer daemon: `except NotFoundError` goes on working, and the code is
    # shown.
    return type(fallback.__name__, (fallback,), {"code": code or fallback.code, "__doc__": fallback.__doc__})


def known_errors(root: type[RftdError] = RftdError) -> Iterator[type[RftdError]]:
    """Every class of error that is loaded, parents first."""
    yield root
    for kind in root.__subclasses__():
        yield from known_errors(kind)
