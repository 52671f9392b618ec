"""`LogUrl`, the place of a log, and `LogBackend`, all that tells one kind of event log from another.

Code that needs a log of another process holds a `LogUrl` and asks `backend_of` for its backend. A backend is one class
in one file and one line in `BACKENDS`, or a third party's entry point in the group `rftd.log_backends`, under its
scheme.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final

import msgspec

from rftd.ops.clock import Clock
from rftd.ops.errors import UsageError
from rftd.ops.health import Diagnosis
from rftd.ops.ids import Ids
from rftd.ops.plugins import Plugins
from rftd.streams.log.log import EventLog


class LogUrl(msgspec.Struct, frozen=True):
    """The place of a log as a person wrote it; only `LogBackend.checked` says whether it can be right."""

    scheme: str
    """The name of its backend, which stands before the first colon of the URL."""
    text: str
    """The whole URL, scheme included."""


class LogBackend(ABC):
    """A kind of event log that processes find by a URL. Each is made without arguments and holds no state."""

    name: ClassVar[str]
    """The name that people call it by in a sentence: `no payload can be dropped on NAME`."""
    form: ClassVar[str]
    """The pattern of its URLs, for help and errors: `kafka://HOST:PORT`."""
    option: ClassVar[str] = "--log"
    """The option of a command line that names such a log."""
    serves: ClassVar[bool] = True
    """True if a daemon can serve on it; False for the log of a daemon that serves already."""
    chained: ClassVar[bool] = False
    """True if a record's `chain` covers the records before it: one process writes each partition."""

    @abstractmethod
    def checked(self, text: str) -> LogUrl:
        """The place in the one form that workers are given, without a secret. Raises ConfigError with the fix."""

    @abstractmethod
    def place(self, url: LogUrl) -> str:
        """The name of a checked URL's place, for people: `Kafka at host:9092`."""

    def variables(self, url: LogUrl) -> tuple[str, ...]:
        """The variables of the environment that `open` reads for a checked URL, such as that of a password."""
        return ()

    @abstractmethod
    async def open(self, url: LogUrl, *, clock: Clock, ids: Ids) -> EventLog:
        """The log at a checked URL; the caller closes it. Raises UnreachableError if nobody answers there.

        Its errors advise what a person can do: where the log is away, a daemon waits and shows them.
        """

    async def identity(self, url: LogUrl) -> str:
        """What tells the log at a checked URL from every other, a copy of it included; empty if nothing does.

        Raises UnreachableError if nobody answers there.
        """
        return ""

    async def diagnose(self, text: str) -> list[Diagnosis]:
        """The checks that `rftd doctor` shows of the place, in bounded time; an error counts as a failed check."""
        place = self.place(self.checked(text))
        return [Diagnosis(self.name.lower(), "ok", f"{place} is a log's place; this backend checks no more")]


BACKENDS: Final = Plugins[LogBackend](
    "stream backend",
    group="rftd.log_backends",
    table={
        "unix": "rftd.streams.sqlite.socket.client:SocketBackend",
        "kafka": "rftd.streams.kafka.backend:KafkaBackend",
    },
)


def log_url(text: str) -> LogUrl:
    """The place that `SCHEME:REST` names. Raises UsageError unless it has both and a backend is registered for it."""
    scheme, _, rest = text.partition(":")
    if rest and scheme in BACKENDS.names():
        return LogUrl(scheme, text)
    ours = [BACKENDS.open(each).form for each in BACKENDS.names() if BACKENDS.builtin(each)]
    others = [f"{each}:..." for each in BACKENDS.names() if not BACKENDS.builtin(each)]
    raise UsageError(f"no log at {text!r}", field="--log", fix=f"give {' or '.join([*ours, *others])}")


def backend_of(url: LogUrl) -> LogBackend:
    """The backend of a URL's scheme. Raises ConfigError for a scheme that nobody registered."""
    return BACKENDS.open(url.scheme)
