"""`ReadRoute` and `CommandRoute`: the declaration of a read and of a command, for API and client alike.

A read is declared together with its answer: path, kind of the answer, and the function building it. The API derives a
route and its part of the OpenAPI document, the client requests the read by name. This module and those declaring reads
import no FastAPI, no SQLAlchemy and nothing of the log at once: the command line imports them too.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Protocol, TypeVar, cast
from urllib.parse import quote
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.problem import Problem
from rftd.daemon.trust.asker import AccessRole, Asker
from rftd.ops.clock import time_ns_of
from rftd.ops.errors import UsageError
from rftd.ops.health import Diagnosis, Verdict
from rftd.ops.ids import Ids
from rftd.storage.queries.cursor import CURSOR_CHARACTERS

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from rftd.daemon.http.views.alerts import AlertList
    from rftd.daemon.http.views.budgets import BudgetRow
    from rftd.daemon.http.views.memory import MemoryRow
    from rftd.daemon.http.views.trackers import TrackerRow
    from rftd.daemon.run.operations import Operations
    from rftd.daemon.run.supervisor.recomputing import Recomputations
    from rftd.daemon.run.why.wait import Wait
    from rftd.daemon.text.texts import Texts
    from rftd.daemon.text.trials import Trials
    from rftd.daemon.text.word_index import WordIndex
    from rftd.daemon.trust.token_holder import TokenHolder
    from rftd.ops.clock import Clock
    from rftd.storage.files.checkpoint_file import OpenedFile
    from rftd.storage.queries.curve import RewardCurves
    from rftd.storage.queries.run_figures import RunFigures
    from rftd.storage.queries.step_columns import StepColumns
    from rftd.streams.log.log import EventLog
    from rftd.streams.log.topics import Partition
    from rftd.workers.devices.host import Host

R = TypeVar("R", bound=msgspec.Struct)
"""Struct answered by a route."""
B = TypeVar("B", bound=msgspec.Struct)
"""Struct of a command's body."""

MOST: Final = (1 << 53) - 1
"""Largest whole number in a request: beyond it a browser's numbers have gaps."""
NAME_CHARACTERS: Final = 500
"""Maximum number of characters in the name or id of an experiment."""
POSITION_CHARACTERS: Final = 100
"""Maximum number of characters in a position of the log."""
COMMAND_TIMEOUT_S: Final = 120.0
"""Longest time for a command in seconds: a submission reads its datasets whole, to count and digest them."""
YAML: Final = "application/yaml"
"""Media type of an experiment file (RFC 9512)."""
STREAM: Final = "/v1/experiments/{name}/stream"
"""Path of an experiment's page as server-sent events: an endless answer, and so no `ReadRoute`."""

Name = Annotated[
    str, Meta(max_length=NAME_CHARACTERS, description="Its name, `NAME@2`, its id, or a unique beginning of its id.")
]
"""Name or id of an experiment in a request."""
After = Annotated[
    str | None,
    Meta(max_length=POSITION_CHARACTERS, description="Wait until the tables hold the record at this position."),
]
"""Position in the log, to be reached by the tables before the answer."""
Limit = Annotated[int, Meta(ge=1, le=1000)]
"""Maximum number of rows on a page, from 1 to 1,000."""
Cursor = Annotated[
    str | None, Meta(max_length=CURSOR_CHARACTERS, description="`next` of the page before, in the same order.")
]
"""Cursor of a page, from the answer with the page before."""
Offset = Annotated[int, Meta(ge=0, le=MOST)]
"""Number of rows or bytes left out at the beginning."""
Step = Annotated[int, Meta(ge=0, le=MOST)]
"""Number of a step in a request."""
Int = Annotated[int | None, Meta(ge=0, le=MOST)]
"""Whole number in a request, at least 0, or none."""
Real = Annotated[float | None, Meta(extra={"allow_inf_nan": False})]
"""Finite number in a request, or none."""
Time = Annotated[str | None, Meta(max_length=40, description="ISO 8601 with a time zone: 2026-01-31T12:00:00Z.")]
"""Moment in a request, ISO 8601 with a time zone, or none."""
Word = Annotated[str | None, Meta(max_length=NAME_CHARACTERS, pattern=r"^[^\x00]*$")]
"""Text without NUL characters, not storable in PostgreSQL."""


class Commanded(Protocol):
    """The daemon from the perspective of commands naming one experiment, or none."""

    @property
    def operations(self) -> Operations:
        """Commands of the daemon, and questions about its experiments."""
        ...

    async def find(self, name_or_id: str) -> UUID:
        """Returns the experiment with this name or id. Raises NotFoundError, UsageError."""
        ...


class MachineAbilities(Protocol):
    """The checks of engines and sandboxes on the machine of a daemon."""

    async def engines(self, host: Host) -> list[Diagnosis]:
        """Returns the findings about engines and launchers on the workers' machine."""
        ...

    async def sandboxes(self) -> list[Diagnosis]:
        """Returns the findings about sandboxes on the daemon's machine."""
        ...


class Daemon(Protocol):
    """The daemon from the perspective of reads and commands."""

    @property
    def operations(self) -> Operations:
        """Commands of the daemon, and questions about its experiments."""
        ...

    @property
    def log(self) -> EventLog:
        """The event log."""
        ...

    @property
    def curves(self) -> RewardCurves:
        """Reward curves of experiments, cached."""
        ...

    @property
    def columns(self) -> StepColumns:
        """Figures of steps as columns, cached."""
        ...

    @property
    def texts(self) -> Texts:
        """Decoder of token ids into texts."""
        ...

    @property
    def trials(self) -> Trials:
        """Runner of first rows and tried rollouts."""
        ...

    @property
    def words(self) -> WordIndex:
        """Index of the words of answers."""
        ...

    @property
    def recomputations(self) -> Recomputations | None:
        """Terms of objectives recomputed by replays; None for a daemon without decisions."""
        ...

    @property
    def version(self) -> str:
        """Release of the daemon."""
        ...

    @property
    def ids(self) -> Ids:
        """Source of new ids."""
        ...

    @property
    def clock(self) -> Clock:
        """Clock of the daemon."""
        ...

    @property
    def daemon_log(self) -> Path | None:
        """Path of the daemon's log file; None without one."""
        ...

    def applied_offsets(self) -> Mapping[Partition, int]:
        """Returns the next offset of each partition not yet in the tables."""
        ...

    async def verdict(self) -> Verdict:
        """Returns the results of the checks of readiness."""
        ...

    @property
    def asker(self) -> Asker:
        """The asker of the request, with role and quota."""
        ...

    def login_path(self) -> str:
        """Returns the path of a one-time link, with the rights of the asker."""
        ...

    def open_file(self, name: str, text: str) -> str:
        """Keeps an experiment file for the asker's studio, and returns the id of the file."""
        ...

    def holders(self) -> tuple[TokenHolder, ...]:
        """Returns the named tokens visible to the asker: all for an admin, else the asker's own."""
        ...

    def read(self, after: str | None = None, *, newest: bool = False) -> AbstractAsyncContextManager[AsyncConnection]:
        """Opens one snapshot of the tables, not older than the record at `after`, and with `newest` not older than any
        record in the log now. Raises WaitTimeoutError.
        """
        ...

    async def find(self, name_or_id: str, after: str | None = None) -> UUID:
        """Returns the experiment with this name or id. Raises NotFoundError, UsageError."""
        ...

    async def resolve(self, connection: AsyncConnection, name_or_id: str) -> UUID:
        """Returns the experiment with this name or id, within an open snapshot. Raises NotFoundError, UsageError."""
        ...

    def figures(self) -> Callable[[AsyncConnection, UUID], Awaitable[RunFigures]]:
        """Returns a read of an experiment's figures in a list, cached while nothing is new.

        To be called before the tables are opened: later records must not make earlier figures look new.
        """
        ...

    def applied_of(self, experiment: UUID) -> int:
        """Returns the number of the experiment's records in the tables."""
        ...

    def waiting(self, experiment: UUID) -> str | None:
        """Returns why the experiment stands still (log failure or opening engines), whatever the tables say."""
        ...

    def strangers(self, experiment: UUID) -> list[Wait]:
        """Returns a wait about records naming the experiment but written by a foreign program; empty without any."""
        ...

    def alerts(self) -> AlertList:
        """Returns the newest alerts, and the receivers of alerts."""
        ...

    @property
    def abilities(self) -> MachineAbilities:
        """The engines and sandboxes that the machine can run."""
        ...

    def memory(self, experiment: UUID) -> list[MemoryRow]:
        """Returns the memory forecast of the workers at acceptance, and their present use."""
        ...

    async def trackers(self, experiment: UUID) -> list[TrackerRow]:
        """Returns the experiment's trackers with their progress, from cursors written by the tracker processes."""
        ...

    async def budgets(self, connection: AsyncConnection, experiment: UUID) -> list[BudgetRow]:
        """Returns the experiment's budgets with the amounts spent; empty without budgets."""
        ...

    def follower(self) -> AbstractContextManager[None]:
        """Holds one slot for a following client. Raises BusyError if all are in use."""
        ...


@dataclass(frozen=True, kw_only=True)
class Route(Generic[R]):
    """A path of the API, its answer, and the function building the answer."""

    path: str
    """Path of the route; `{name}` stands for the parameter of this name."""
    answer: type[R]
    """Struct answered by the route."""
    tag: str
    """Chapter of the OpenAPI document."""
    name: str
    """Name of the route in the clients."""
    work: Callable[..., Awaitable[R]]
    """Called with a `Daemon`, a command's body and key, and the parameters of the request by name."""
    role: AccessRole
    """Smallest role with access."""

    @property
    def text(self) -> str:
        """The function's docstring, used as the text in the API's document."""
        return self.work.__doc__ or ""

    def url(self, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Returns the path with its parameters filled in, and the other parameters."""
        return url_of(self.path, parameters)


class ReadRoute(Route[R]):
    """A GET: parameters of `work` not in the path are query parameters."""

    @property
    def is_look(self) -> bool:
        """True if the request counts as a look at one experiment; programs polling progress use the summary."""
        return self.path.startswith("/v1/experiments/{name}") and self.name != "summary"


class FileRoute(Route[Problem]):
    """A GET of bytes: `work` opens the file, and the API sends it, whole or a range; only errors are JSON."""


@dataclass(frozen=True, kw_only=True)
class CommandRoute(Route[R], Generic[B, R]):
    """A POST: in effect, and in the log, once answered; or `dry`, with the answer a real command would get."""

    body: type[B]
    """Struct of the request's body."""
    optional: bool
    """True if the body may be missing; then every field has its default."""
    summary: str
    """Title of the command in the OpenAPI document."""
    timeout_s: float
    """Longest time in seconds until the command is in the log."""
    of_file: Callable[[dict[str, Any]], B] | None = None
    """Builds the body from an experiment file's content, if the file itself is accepted as well."""
    dry: bool = False
    """True: nothing is appended, so there is no key, and `work` is called without one."""
    submits: bool = False
    """True if the command counts as a submission of its asker."""


def time_of(text: str | None, field: str) -> int | None:
    """Returns a time in nanoseconds; None without a text. Raises UsageError for no time in ISO 8601."""
    try:
        return None if text is None else time_ns_of(text)
    except (ValueError, OverflowError):
        fix = "write it like 2026-01-31T12:00:00Z, with a time zone"
        raise UsageError(f"{text!r} is no time in ISO 8601", field=field, fix=fix) from None


def read(
    path: str, answer: type[R], *, tag: str, name: str | None = None, role: AccessRole = AccessRole.READ
) -> Callable[[Callable[..., Awaitable[R]]], ReadRoute[R]]:
    """Declares a read: the decorated function builds the answer; its docstring is its text in the API's document."""

    def declared(work: Callable[..., Awaitable[R]]) -> ReadRoute[R]:
        return ReadRoute(path=path, answer=answer, tag=tag, name=name or work.__name__, work=work, role=role)

    return declared


def download(
    path: str, *, tag: str, name: str, role: AccessRole = AccessRole.ADMIN
) -> Callable[[Callable[..., Awaitable[OpenedFile]]], FileRoute]:
    """Declares a download: the decorated function opens the file."""

    def declared(work: Callable[..., Awaitable[OpenedFile]]) -> FileRoute:
        return FileRoute(path=path, answer=Problem, tag=tag, name=name, work=cast(Any, work), role=role)

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
    """Declares a command: the decorated function carries it out, once per key."""

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
    """Returns a path with its parameters filled in, each quoted, and the remaining parameters for the query."""
    named = re.findall(r"\{(\w+)\}", path)
    # `safe=""`: a name may contain a slash, which would otherwise become another path.
    quoted = {name: quote(str(parameters[name]), safe="") for name in named}
    query = {sent_name(name): parameter for name, parameter in parameters.items() if name not in named}
    return path.format(**quoted), query


def sent_name(parameter: str) -> str:
    """Returns the name of a function's parameter in a request: without the underscore after a word of Python."""
    return parameter.removesuffix("_")
