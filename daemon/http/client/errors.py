"""The errors of `rftd.ops.errors`, recreated from answers of the daemon."""

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
"""Error class of HTTP statuses, for unknown codes."""


class CertificateError(UnreachableError):
    """The daemon's certificate is not for this address, or nobody that this machine trusts signed it."""

    code = "RFTD-NET-002"
    """Code of the error for an untrusted certificate."""
    remedy = (
        "Use the name that the certificate is for; for one that your own authority signed, set `SSL_CERT_FILE` to that "
        "authority's certificate."
    )
    """Remedy for an untrusted certificate, shown to people."""


class SeveralErrors(UsageError):
    """A request with more than one error; `errors` has each of them."""

    def __init__(self, message: str, errors: tuple[RftdError, ...]) -> None:
        """`message` says how many errors there are, and `errors` has each of them."""
        super().__init__(message)
        self.errors = errors
        """The errors of the request, each with its field and remedy."""

    def __str__(self) -> str:
        return "\n\n".join(str(error) for error in self.errors)


def error_of(status: int, body: bytes, url: str) -> RftdError:
    """Returns the error described by a problem+json answer, as the class of its code."""
    try:
        problem = json_decoder(Problem).decode(body)
    except UNREADABLE:
        return stranger(status, url)
    kind = kind_of(problem.code, status)
    if problem.errors:
        errors = tuple(
            kind_of(problem_part.code, status)(
                problem_part.what, field=problem_part.field, where=problem_part.where, fix=problem_part.fix
            )
            for problem_part in problem.errors
        )
        return SeveralErrors(problem.detail, errors)
    return kind(problem.detail, field=problem.field, where=problem.where, fix=problem.fix)


def stranger(status: int, url: str) -> UnreachableError:
    """Returns the error for an answer impossible for a daemon of this release, whatever its status."""
    return UnreachableError(
        f"the answer has status {status} and is none of rftd's",
        where=url,
        fix="is another program on this port, or a daemon of another release?",
    )


def kind_of(code: str, status: int) -> type[RftdError]:
    """Returns the class with this code; for an unknown code, the class of its HTTP status."""
    for kind in known_errors():
        # Classes with additional arguments cannot be created from a problem's fields.
        if kind.code == code and kind.__init__ is RftdError.__init__:
            return kind
    fallback = _BY_STATUS.get(status, UsageError if status < 500 else RftdError)
    # A new class for a code from a newer daemon: `except NotFoundError` keeps working, and the code is shown.
    return type(fallback.__name__, (fallback,), {"code": code or fallback.code, "__doc__": fallback.__doc__})


def known_errors(root: type[RftdError] = RftdError) -> Iterator[type[RftdError]]:
    """Yields every loaded error class below `root`, parents before their subclasses."""
    yield root
    for kind in root.__subclasses__():
        yield from known_errors(kind)
