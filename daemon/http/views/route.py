"""`ReadRoute` and `CommandRoute`: the declaration of a read and of a command, for API and client alike.

A read is declared where its answer is: path, kind of the answer, and the function that makes it. The API makes a route
and its part of the OpenAPI document of it, the client asks for it by name. This module and those that declare reads
import no FastAPI, no SQLAlchemy and nothing of the log at once: the command line imports them too.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Protocol, TypeVar
from urllib.parse import quote
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.trust.asker import AccessRole, Asker
from rftd.ops.ids import Ids

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from rftd.daemon.http.views.budgets import BudgetRow
    from rftd.daemon.http.views.memory import MemoryRow
    from rftd.daemon.http.views.trackers import TrackerRow
    from rftd.daemon.run.operations import Operations
    from rftd.daemon.run.why.wait import Wait
    from rftd.daemon.trust.token_holder import TokenHolder
    from rftd.storage.queries.curve import RewardCurves
    from rftd.streams.log.log import EventLog

R = TypeVar("R", bound=msgspec.Struct)
B = TypeVar("B", bound=msgspec.Struct)

MOST: Final = (1 << 53) - 1
"""The largest whole number that a request may name: beyond it the numbers of a browser have gaps."""
NAME_CHARACTERS: Final = 500
POSITION_CHARACTERS: Final = 100
COMMAND_TIMEOUT_S: Final = 120.0
"""Longest time for a command: a submission reads its datasets whole, to count and digest them."""
YAML: Final = "application/yaml"
"""The media type of an experiment file (RFC 9512)."""
STREAM: Final = "/v1/experiments/{name}/stream"
"""An experiment's page as server-sent events: no answer that ends, and so no `ReadRoute`."""

Name = Annotated[
    str, Meta(max_length=NAME_CHARACTERS, description="Its name, `NAME@2`, its id, or a unique beginning of its id.")
]
After = Annotated[
    str | None,
    Meta(max_length=POSITION_CHARACTERS, description="Wait until the tables hold the record at this position."),
]
Limit = Annotated[int, Meta(ge=1, le=1000)]
Offset = Annotated[int, Meta(ge=0, le=MOST)]
Step = Annotated[int, Meta(ge=0, le=MOST)]
Int = Annotated[int | None, Meta(ge=0, le=MOST)]
Real = Annotated[float | None, Meta(extra={"allow_inf_nan": False})]
Word = Annotated[str | None, Meta(max_length=NAME_CHARACTERS, pattern=r"^[^\x00]*$")]
"""Text without NUL characters, which PostgreSQL cannot hold."""


class Commanded(Protocol):
    """The daemon as commands that name one experiment, or none, see it."""

    @property
    def operations(self) -> Operations: ...

    async def find(self, wanted: str) -> UUID:
        """The experiment that a person named. Raises NotFoundError, UsageError."""
        ...


class Daemon(Protocol):
    """The daemon as reads and commands see it."""

    @property
    def operations(self) -> Operations: ...

    @property
    def log(self) -> EventLog: ...

    @property
    def curves(self) -> RewardCurves: ...

    @property
    def version(self) -> str: ...

    @property
    def ids(self) -> Ids: ...

    @property
    def daemon_log(self) -> Path | None: ...

    @property
    def asker(self) -> Asker:
        """The one who asks."""
        ...

    def login_path(self) -> str:
        """The path of a one-time link, with the rights of the asker."""
        ...

    def holders(self) -> tuple[TokenHolder, ...]:
        """The named tokens in use that the asker may see."""
        ...

    def read(self, after: str | None = None) -> AbstractAsyncContextManager[AsyncConnection]:
        """One snapshot of the tables, not older than the record at `after`."""
        ...

    async def find(self, wanted: str, after: str | None = None) -> UUID:
        """The experiment that a person named. Raises NotFoundError, UsageError."""
        ...

    async def resolve(self, connection: AsyncConnection, wanted: str) -> UUID:
        """The experiment that a person named, within a snapshot that is open. Raises NotFoundError, UsageError."""
        ...

    def waiting(self, experiment: UUID) -> str | None:
        """The reason why nothing moves, or workers that open their engines, whatever the tables say; else None."""
        ...

    def strangers(self, experiment: UUID) -> list[Wait]:
        """A line about records that name the experiment and that a stranger wrote; none if there are none."""
        ...

    def memory(self, experiment: UUID) -> list[MemoryRow]:
        """The memory that its workers were expected to take when it was accepted, and what they use."""
        ...

    async def trackers(self, experiment: UUID) -> list[TrackerRow]:
        """Its trackers, and how far each has come."""
        ...

    async def budgets(self, connection: AsyncConnection, experiment: UUID) -> list[BudgetRow]:
        """Its budgets, and what is spent of each."""
        ...

    def follower(self) -> AbstractContextManager[None]:
        """One of the places for clients that wait. Raises BusyError if all are taken."""
        ...


@dataclass(frozen=True, kw_only=True)
class Route(Generic[R]):
    """A path of the API, what it answers, and the function that makes the answer."""

    path: str
    """`{name}` stands for the parameter of that name."""
    answer: type[R]
    tag: str
    """The chapter of the OpenAPI document."""
    name: str
    work: Callable[..., Awaitable[R]]
    """Called with a `Daemon`, a command's body and key, and the parameters of the request by their names."""
    role: AccessRole
    """The smallest role whose token may ask for it."""

    @property
    def text(self) -> str:
        """The function's docstring."""
        return self.work.__doc__ or ""

    def url(self, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The path with the parameters that it names, and the other parameters."""
        return url_of(self.path, parameters)


class ReadRoute(Route[R]):
    """A GET: the parameters of `work` that the path does not name are those of the query."""

    @property
    def is_look(self) -> bool:
        """True if who asks looks at one experiment; a program that asks often how far it is reads the summary."""
        return self.path.startswith("/v1/experiments/{name}") and self.name != "summary"


@dataclass(frozen=True, kw_only=True)
class CommandRoute(Route[R], Generic[B, R]):
    """A POST: in effect, and in the log, when it is answered; or `dry`, and told what would be."""

    body: type[B]
    optional: bool
    """True if the body may be missing; then every field has its default."""
    summary: str
    timeout_s: float
    """Longest time until it is in the log."""
    of_file: Callable[[dict[str, Any]], B] | None = None
    """Makes the body of an experiment file's content, if the file itself is taken as well."""
    dry: bool = False
    """True: nothing is appended, so it has no key, and `work` is called without one."""
    submits: bool = False
    """True if it makes an experiment, and so counts as a submission of its asker."""


def read(
    path: str, answer: type[R], *, tag: str, name: str | None = None, role: AccessRole = AccessRole.READ
) -> Callable[[Callable[..., Awaitable[R]]], ReadRoute[R]]:
    """Declares a read: the function below makes the answer, and its docstring is what the API's document says."""

    def declared(work: Callable[..., Awaitable[R]]) -> ReadRoute[R]:
        return ReadRoute(path=path, answer=answer, tag=tag, name=name or work.__name__, work=work, role=role)

    return declared


def command(
    path: str,
    body: type[B],
    answer: type[R],
    *,
    tag: str,
    optional: bool = False,
    name: str | None = None,
    summary: str | None = None,
    timeout_s: float = COMMAND_TIMEOUT_S,
    of_file: Callable[[dict[str, Any]], B] | None = None,
    dry: bool = False,
    role: AccessRole = AccessRole.SUBMIT,
    submits: bool = False,
) -> Callable[[Callable[..., Awaitable[R]]], CommandRoute[B, R]]:
    """Declares a command: the function below carries it out, once for each key."""

    def declared(work: Callable[..., Awaitable[R]]) -> CommandRoute[B, R]:
        return CommandRoute(
            path=path,
            body=body,
            answer=answer,
            tag=tag,
            name=name or work.__name__,
            summary=summary or work.__name__.capitalize(),
            work=work,
            optional=optional,
            timeout_s=timeout_s,
            of_file=of_file,
            dry=dry,
            role=role,
            submits=submits,
        )

    return declared


def url_of(path: str, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """See `Route.url`."""
    named = re.findall(r"\{(\w+)\}", path)
    # `safe=""`: a name may hold a slash, which would else become another path.
    quoted = {name: quote(str(parameters[name]), safe="") for name in named}
    return path.format(**quoted), {name: value for name, value in parameters.items() if name not in named}
