"""`Answer`: one answer of the daemon, as plain JSON and as a typed view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from rftd.daemon.http.client.errors import stranger
from rftd.daemon.http.views.wire import from_wire
from rftd.ops.decoding import UNREADABLE
from rftd.ops.health import Verdict

R = TypeVar("R", bound=msgspec.Struct)
"""Type of the view decoded from an answer."""
Parameter = str | int | float | bool | Sequence[str] | None
"""Value of a query parameter; None leaves the parameter out."""


class Answer(Generic[R]):
    """One answer of the daemon, both as plain JSON and as a typed view."""

    def __init__(self, body: bytes, kind: type[R], *, status: int, url: str) -> None:
        """Decodes `body` as a view of type `kind`. Raises UnreachableError for a body that a daemon of this release
        cannot have sent.
        """
        try:
            self._plain = msgspec.json.decode(body)
            """The answer as plain JSON."""
            self.value: R = from_wire(self._plain, kind)
            """The answer as a typed view."""
        except UNREADABLE as error:
            raise stranger(status, url) from error

    def plain(self) -> Any:
        """Returns the whole answer as JSON, for machine-readable output."""
        return self._plain


class Readiness(NamedTuple):
    """A daemon's verdict on its own readiness, with the daemon's clock."""

    verdict: Verdict
    """The daemon's verdict on its own readiness, with the outcome of each check."""
    clock_s: float | None
    """The daemon's clock at the answer, in whole seconds since 1970; None if not sent."""
