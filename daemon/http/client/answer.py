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
Parameter = str | int | float | bool | Sequence[str] | None


class Answer(Generic[R]):
    """One answer of the daemon, both as plain JSON and as a typed view."""

    def __init__(self, body: bytes, kind: type[R], *, status: int, url: str) -> None:
        """Raises UnreachableError for an answer impossible for a daemon of this release."""
        try:
            self._plain = msgspec.json.decode(body)
            self.value: R = from_wire(self._plain, kind)
        except UNREADABLE as error:
            raise stranger(status, url) from error

    def plain(self) -> Any:
        """Returns the whole answer as JSON, for machine-readable output."""
        return self._plain


class Readiness(NamedTuple):
    """A daemon's verdict on its own readiness, with the daemon's clock."""

    verdict: Verdict
    clock_s: float | None
    """The daemon's clock at the answer, in whole seconds since 1970; None if not sent."""
