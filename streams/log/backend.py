"""`LogUrl`, the address of a log, and `LogBackend`, the interface of one kind of event log.

Code working with another process's log holds a `LogUrl` and gets the backend from `backend_of`. A backend is one class
in one file and one line in `BACKENDS`, or a third party's entry point in the group `rftd.log_backends`, named by its
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
    """The address of a log as typed by a person; `LogBackend.checked` decides whether it is valid."""

    scheme: str
    """Name of the backend: the text before the first colon."""
    text: str
    """The whole URL, scheme included."""


class LogBackend(ABC):
    """One kind of event log, opened by URL. Subclasses are constructed without arguments and have no state."""

    name: ClassVar[str]
    """The name used in sentences: `no payload can be dropped on NAME`."""
    form: ClassVar[str]
    """The pattern of its URLs, for help and errors: `kafka://HOST:PORT`."""
    option: ClassVar[str] = "--log"
    """The command line's option for the URL of such a log."""
    serves: ClassVar[bool] = True
    """True if a daemon can use the log; False for a connection to another daemon's log."""
    chained: ClassVar[bool] = False
    """True if a record's `chain` covers the records before it: one process writes each partition."""

    @abstractmethod
    def checked(self, text: str) -> LogUrl:
        """Returns the normalised address, as passed to workers, without a secret. Raises ConfigError with its fix."""

    @abstractmethod
    def place(self, url: LogUrl) -> str:
        """Returns the name of a checked URL's location for people: `Kafka at host:9092`."""

    def variables(self, url: LogUrl) -> tuple[str, ...]:
        """Returns the names of environment variables read by `open`, such as that of a password."""
        return ()

    @abstractmethod
    async def open(self, url: LogUrl, *, clock: Clock, ids: Ids) -> EventLog:
        """Opens the log at a checked URL; the caller closes it. Raises UnreachableError if the address does not answer.

        Errors advise actions of a person: while the log is away, a daemon waits and shows them.
        """

    async def identity(self, url: LogUrl) -> str:
        """Returns an identity different for every log, even for a copy; empty if the backend has none.

        Raises UnreachableError if the address does not answer.
        """
        return ""

    async def diagnose(self, text: str) -> list[Diagnosis]:
        """Runs the checks shown by `rftd doctor` for an address, in bounded time; an error counts as a failed check."""
        location = self.place(self.checked(text))
        return [Diagnosis(self.name.lower(), "ok", f"{location} is valid; this backend has no further checks")]


BACKENDS: Final = Plugins[LogBackend](
    "stream backend",
    group="rftd.log_backends",
    table={
        "unix": "rftd.streams.sqlite.socket.client:SocketBackend",
        "kafka": "rftd.streams.kafka.backend:KafkaBackend",
    },
)
"""The kinds of logs known by a URL, by its scheme. The embedded log of a daemon without a URL is opened by
`rftd.daemon.serve.log_source`."""


def log_url(text: str) -> LogUrl:
    """Parses `SCHEME:REST` into a LogUrl. Raises UsageError for an unregistered scheme or an empty rest."""
    scheme, _, address = text.partition(":")
    if address and scheme in BACKENDS.names():
        return LogUrl(scheme, text)
    builtin = [BACKENDS.open(scheme_name).form for scheme_name in BACKENDS.names() if BACKENDS.builtin(scheme_name)]
    third_party = [f"{scheme_name}:..." for scheme_name in BACKENDS.names() if not BACKENDS.builtin(scheme_name)]
    raise UsageError(f"no log at {text!r}", field="--log", fix=f"give {' or '.join([*builtin, *third_party])}")


def backend_of(url: LogUrl) -> LogBackend:
    """Returns the backend of a URL's scheme. Raises ConfigError for an unregistered scheme."""
    return BACKENDS.open(url.scheme)
