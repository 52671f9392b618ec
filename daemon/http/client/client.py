"""`Client` and `AsyncClient`: the daemon's runs, reads and commands from a program. Errors of `rftd.ops.errors`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, overload

import msgspec

from rftd.daemon.cli.settings import Settings, data_folder
from rftd.daemon.http.client.address import NoDaemonError
from rftd.daemon.http.client.answer import Answer, Parameter, Readiness
from rftd.daemon.http.client.driving import blocking, driven, each_of, handled, yielding
from rftd.daemon.http.client.errors import CertificateError
from rftd.daemon.http.client.submission import submission_of
from rftd.daemon.http.views.wire import to_wire
from rftd.ops.errors import NotFoundError, RftdError, UnreachableError, UsageError

if TYPE_CHECKING:
    from rftd.daemon.http.client.address import Address
    from rftd.daemon.http.client.connection import DaemonConnection
    from rftd.daemon.http.client.local import FolderDaemon
    from rftd.daemon.http.client.rows import RowList
    from rftd.daemon.http.client.run import AsyncRunHandle, RunHandle
    from rftd.daemon.http.client.submission import Part
    from rftd.daemon.http.client.transport import Transport
    from rftd.daemon.http.views.alerts import AlertList
    from rftd.daemon.http.views.comparison import Basis, ComparedStep
    from rftd.daemon.http.views.differences import FieldDifference
    from rftd.daemon.http.views.experiments import ExperimentPage
    from rftd.daemon.http.views.machine import MachineView
    from rftd.daemon.http.views.route import CommandRoute, ReadRoute
    from rftd.daemon.http.views.system import StreamRow, SystemView, WorkerState
    from rftd.daemon.run.consequence import Consequence
    from rftd.storage.queries.experiments import ExperimentSummary
    from rftd.storage.queries.weights import WorkerRow
    from rftd.streams.log.backend import LogUrl
    from rftd.streams.log.log import EventLog

__all__ = ["Answer", "AsyncClient", "Client", "Readiness", "asked_or_read", "compare", "follow", "nobody_listens"]

R = TypeVar("R", bound=msgspec.Struct)
"""Type of the view answered by a read or command."""
B = TypeVar("B", bound=msgspec.Struct)
"""Type of a command's body."""

PATIENCE_S: Final = 30.0
"""Longest time in seconds for which a program asks a restarting or busy daemon again."""


class ConnectedClient:
    """One daemon by its address: what the blocking and the asynchronous client have in common."""

    def __init__(
        self,
        server: str | Settings | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        data: str | os.PathLike[str] | None = None,
        token: str | None = None,
        timeout_s: float | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`server` is a URL, or the settings of a command line; `data` a daemon's folder.

        `timeout_s` bounds each answer: by default 30 s, and for a command as long as the daemon works on it.
        `patience_s` bounds the repetition of requests to a restarting daemon.
        """
        # Late: importing HTTP takes longer than everything else, and `from rftd import Client` needs none.
        from rftd.daemon.http.client.connection import DaemonConnection

        environ = os.environ if environ is None else environ
        if token is not None:
            environ = {**environ, "RFTD_TOKEN": token}
        if isinstance(server, Settings):
            settings = server
            patience_s = 0.0
        else:
            settings = Settings(server, data=None if data is None else os.fspath(data), timeout_s=timeout_s)
        self.connection: DaemonConnection = DaemonConnection(
            settings, environ, self._transport(), patience_s=patience_s
        )
        """Reads and commands by their declarations in `rftd.daemon.http.views`."""

    _daemon: FolderDaemon | None = None
    """Daemon of `local`, ended with the client if `local` started it; None for a client made otherwise."""

    @staticmethod
    def _transport() -> Callable[[Address, float], Transport]:
        """Returns the maker of the transport, from address and time-out; implemented by each client."""
        raise NotImplementedError

    @classmethod
    def local(cls, folder: str | os.PathLike[str] = ".rftd", **options: Any) -> Self:
        """Starts a daemon on a folder, and ends it with `close`, a `with` or `async with` block, or the program.

        Blocks until the daemon answers. A daemon already serving the folder is used, and keeps running. `options` are
        those of `rftd serve`.
        """
        from rftd.daemon.http.client.local import FolderDaemon

        daemon = FolderDaemon(Path(folder), options)
        client = cls(data=daemon.folder)
        client._daemon = daemon
        return client

    def __repr__(self) -> str:
        return f"<rftd client of {self.url}>"

    @property
    def url(self) -> str:
        """Present address of the daemon."""
        return self.connection.url

    @property
    def has_token(self) -> bool:
        """True if a token is known for this daemon."""
        return bool(self.connection.address.token.reveal())


class AsyncClient(ConnectedClient):
    """One daemon for programs on an event loop: `async with AsyncClient() as client`.

    Without `server` and `data`, address and token are found as on the command line.
    """

    @staticmethod
    def _transport() -> Callable[[Address, float], Transport]:
        """Returns the transport of programs on an event loop."""
        from rftd.daemon.http.client.transport import LoopTransport

        return LoopTransport

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections, and ends the daemon of `local`; a later call opens new connections."""
        await self.connection.close()
        if self._daemon is not None:
            await asyncio.to_thread(self._daemon.stop)

    async def ask(self, read: ReadRoute[R], /, *, wait_s: float = 0.0, **parameters: Parameter) -> Answer[R]:
        """See `DaemonConnection.ask`."""
        return await self.connection.ask(read, wait_s=wait_s, **parameters)

    async def send(
        self, command: CommandRoute[B, R], body: B, /, *, request_id: str | None = None, **places: str
    ) -> Answer[R]:
        """See `DaemonConnection.send`."""
        return await self.connection.send(command, body, request_id=request_id, **places)

    async def rehearse(self, command: CommandRoute[B, Any], body: B, /, **places: str) -> Answer[Consequence]:
        """See `DaemonConnection.rehearse`."""
        return await self.connection.rehearse(command, body, **places)

    async def readiness(self) -> Readiness:
        """Returns the daemon's verdict on itself, without a token. Raises UnreachableError."""
        return await self.connection.readiness()

    async def metrics(self) -> str:
        """Returns the daemon's metrics in Prometheus format. Raises UnreachableError, UsageError (wrong token)."""
        return await self.connection.metrics()

    def pages(self, name: str, *, after: str | None = None) -> AsyncGenerator[Answer[ExperimentPage], None]:
        """Yields the page of an experiment after every change, until the experiment has ended."""
        return self.connection.pages(name, after=after)

    async def runs(
        self, *, state: str | list[str] | None = None, label: str | list[str] | None = None, limit: int | None = 50
    ) -> RowList[ExperimentSummary]:
        """Returns the experiments, newest first, at most `limit`; None for all. `label` is KEY or KEY=VALUE."""
        from rftd.daemon.http.client.rows import RowList
        from rftd.daemon.http.views import experiments

        rows: list[ExperimentSummary] = []
        cursor: str | None = None
        while limit is None or len(rows) < limit:
            most = 1000 if limit is None else min(1000, limit - len(rows))
            page = await self.connection.ask(
                experiments.listed, state=_as_list(state), label=_as_list(label), limit=most, cursor=cursor
            )
            rows += page.value.items
            cursor = page.value.next
            if cursor is None:
                break
        return RowList.of(rows)

    async def run(self, name: str) -> AsyncRunHandle:
        """Returns the experiment with this name, `NAME@2`, id or beginning of an id. Raises NotFoundError."""
        from rftd.daemon.http.client.run import AsyncRunHandle
        from rftd.daemon.http.views import experiments

        summary = (await self.connection.ask(experiments.summary, name=name)).value
        return AsyncRunHandle(self.connection, summary.id, summary.name)

    @overload
    async def submit(
        self,
        /,
        experiment: str | os.PathLike[str] | Mapping[str, Any],
        *,
        reward: Part | None = None,
        workflow: Part | None = None,
        labels: Mapping[str, str] | None = None,
        request_id: str | None = None,
        dry_run: Literal[False] = False,
        **fields: Any,
    ) -> AsyncRunHandle: ...

    @overload
    async def submit(
        self,
        /,
        experiment: str | os.PathLike[str] | Mapping[str, Any],
        *,
        reward: Part | None = None,
        workflow: Part | None = None,
        labels: Mapping[str, str] | None = None,
        request_id: str | None = None,
        dry_run: Literal[True],
        **fields: Any,
    ) -> Consequence: ...

    async def submit(
        self,
        /,
        experiment: str | os.PathLike[str] | Mapping[str, Any],
        *,
        reward: Part | None = None,
        workflow: Part | None = None,
        labels: Mapping[str, str] | None = None,
        request_id: str | None = None,
        dry_run: bool = False,
        **fields: Any,
    ) -> AsyncRunHandle | Consequence:
        """Submits an experiment file, or a mapping with an equal content, with `fields` set.

        `reward` and `workflow` replace those of all tasksets: a name, `PATH.py:NAME`, or a function or class, whose
        source text goes along. A field is `name="x"`, `buffer__batch_size=8`, or `buffer={"batch_size": 8}`. Repeated
        with one `request_id`, a submission takes effect once; with `dry_run` it is only checked, and its consequence
        returned. Warnings are issued as Python warnings. Raises ConfigErrors with every error, and UsageError for a
        function that cannot travel.
        """
        from rftd.daemon.config.issue import say_where
        from rftd.daemon.http.client.run import AsyncRunHandle
        from rftd.daemon.http.views import commands

        submission = submission_of(experiment, fields, reward=reward, workflow=workflow)
        body = commands.Submit(config=submission.config, labels=dict(labels or {}))
        try:
            if dry_run:
                return (await self.connection.rehearse(commands.submit, body)).value
            receipt = (await self.connection.send(commands.submit, body, request_id=request_id)).value
        except RftdError as error:
            if submission.wrong and not isinstance(error, UsageError):
                raise submission.wrong from None
            say_where(error, submission.source)
            raise
        notes = [text for text in submission.warnings if text not in submission.spec.warnings]
        _warn(dict.fromkeys([*notes, *receipt.warnings]))
        return AsyncRunHandle(self.connection, receipt.id, receipt.name, position=receipt.position)

    async def workers(self, *, state: WorkerState | None = "live") -> RowList[WorkerRow]:
        """Returns the workers of all experiments, the newest first; `state` None for ended ones too."""
        from rftd.daemon.http.client.rows import RowList
        from rftd.daemon.http.views import system

        return RowList.of((await self.connection.ask(system.workers, state=state, limit=1000)).value.items)

    async def streams(self) -> RowList[StreamRow]:
        """Returns the streams of the log, with the number of records not yet in the tables."""
        from rftd.daemon.http.client.rows import RowList
        from rftd.daemon.http.views import system

        return RowList.of((await self.connection.ask(system.streams)).value.items)

    async def system(self) -> SystemView:
        """Returns the daemon's version, checks, machine, experiments by state, and the lag of its tables."""
        from rftd.daemon.http.views import system

        return (await self.connection.ask(system.system)).value

    async def machine(self) -> MachineView:
        """Returns devices, engines and sandboxes of the workers' machine, and the memory of live workers."""
        from rftd.daemon.http.views import machine

        return (await self.connection.ask(machine.machine)).value

    async def alerts(self) -> AlertList:
        """Returns the newest alerts of the daemon, and the receivers of alerts."""
        from rftd.daemon.http.views import system

        return (await self.connection.ask(system.alerts)).value

    async def compare(
        self, *runs: AsyncRunHandle | RunHandle | str, by: Basis = "steps", points: int = 10
    ) -> RowList[ComparedStep]:
        """Returns several runs at equal steps, tokens or time: a row for each run and point, with all figures."""
        from rftd.daemon.http.client.run import compared

        names = [run if isinstance(run, str) else run.id for run in runs]
        return await compared(self.connection, names, by=by, points=points)

    async def diff(self, *runs: AsyncRunHandle | RunHandle | str) -> RowList[FieldDifference]:
        """Returns the fields with different contents in the runs' resolved files, with a column for each run."""
        from rftd.daemon.cli.output.quantity import titles_of
        from rftd.daemon.http.client.rows import RowDict, RowList
        from rftd.daemon.http.views import differences

        names = [run if isinstance(run, str) else run.id for run in runs]
        answer = (await self.connection.ask(differences.diff, name=names)).value
        titles = titles_of([(summary.name, summary.id) for summary in answer.items])
        rows: RowList[Any] = RowList()
        for difference in answer.differences:
            row = RowDict(difference)
            contents = row.pop("values")
            row |= {title: content.get("value") for title, content in zip(titles, contents, strict=True)}
            rows.append(row)
        return rows


def _blocking_run(outcome: AsyncRunHandle) -> RunHandle:
    from rftd.daemon.http.client.run import blocking_run

    return blocking_run(outcome)


class SharedClient(AsyncClient):
    """The asynchronous methods over the connection of a blocking client, driven by `blocking`."""

    def __init__(self, connection: DaemonConnection) -> None:
        """Uses the connection of the blocking client."""
        self.connection = connection


class Client(ConnectedClient):
    """One daemon: `client = Client()`, or `with Client() as client`; every call blocks until the answer.

    Without `server` and `data`, address and token are found as on the command line. Usable inside a running event
    loop, such as a notebook's.
    """

    @staticmethod
    def _transport() -> Callable[[Address, float], Transport]:
        """Returns the blocking transport."""
        from rftd.daemon.http.client.transport import BlockingTransport

        return BlockingTransport

    @cached_property
    def _twin(self) -> AsyncClient:
        """Asynchronous client over the same connection, whose coroutines are driven by the blocking methods."""
        return SharedClient(self.connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections, and ends the daemon of `local`; a later call opens new connections."""
        driven(self.connection.close())
        if self._daemon is not None:
            self._daemon.stop()

    ask = blocking(AsyncClient.ask)
    """See `DaemonConnection.ask`."""
    send = blocking(AsyncClient.send)
    """See `DaemonConnection.send`."""
    rehearse = blocking(AsyncClient.rehearse)
    """See `DaemonConnection.rehearse`."""
    readiness = blocking(AsyncClient.readiness)
    """See `AsyncClient.readiness`."""
    metrics = blocking(AsyncClient.metrics)
    """See `AsyncClient.metrics`."""
    pages = yielding(AsyncClient.pages)
    """See `AsyncClient.pages`."""
    runs = blocking(AsyncClient.runs)
    """See `AsyncClient.runs`."""
    run = handled(AsyncClient.run, _blocking_run)
    """See `AsyncClient.run`."""
    submit = handled(AsyncClient.submit, _blocking_run)
    """See `AsyncClient.submit`."""
    compare = blocking(AsyncClient.compare)
    """See `AsyncClient.compare`."""
    diff = blocking(AsyncClient.diff)
    """See `AsyncClient.diff`."""
    workers = blocking(AsyncClient.workers)
    """See `AsyncClient.workers`."""
    streams = blocking(AsyncClient.streams)
    """See `AsyncClient.streams`."""
    system = blocking(AsyncClient.system)
    """See `AsyncClient.system`."""
    machine = blocking(AsyncClient.machine)
    """See `AsyncClient.machine`."""
    alerts = blocking(AsyncClient.alerts)
    """See `AsyncClient.alerts`."""


def compare(*runs: RunHandle, by: Basis = "steps", points: int = 10) -> RowList[ComparedStep]:
    """Returns several runs of one daemon at equal steps, tokens or time; see `AsyncClient.compare`."""
    if not runs:
        raise UsageError("no run to compare", fix="pass two runs or more")
    return runs[0].compared(*runs[1:], by=by, points=points)


def follow(
    client: Client,
    name: str,
    *,
    after: str | None = None,
    patience_s: float,
    on_away: Callable[[UnreachableError], None] | None = None,
) -> Iterator[Answer[ExperimentPage]]:
    """See `DaemonConnection.follow`."""
    return each_of(client.connection.follow(name, after=after, patience_s=patience_s, on_away=on_away))


def nobody_listens(error: RftdError) -> bool:
    """True if the error means an absent daemon: nothing was sent, or only to a port refusing connections."""
    import httpx

    if isinstance(error, CertificateError):
        return False
    return isinstance(error, NoDaemonError) or isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout)


def asked_or_read(
    settings: Settings,
    log_at: LogUrl | None,
    ask: Callable[[Client], Answer[R]],
    read: Callable[[EventLog], Awaitable[R]],
) -> tuple[R, Any]:
    """Returns the daemon's answer and its JSON; without a daemon, the outcome of `read` on the log of --data or
    `log_at`.

    A daemon answering with an error, or late, exists: its error is raised.
    """
    try:
        with Client(settings) as client:
            answer = ask(client)
        return answer.value, answer.plain()
    except UnreachableError as away:
        if not nobody_listens(away):
            raise
        # Only if there is a log: without one, "no daemon answers" is the helpful error.
        if log_at is None and not (Path(data_folder(settings)) / "log").is_dir():
            raise
        from rftd.daemon.serve.log_source import read_here

        try:
            view = read_here(settings, log_at, read)
        except NotFoundError as error:
            raise error from away
        return view, to_wire(view)


def _warn(notes: Iterable[str]) -> None:
    """Issues warnings at the line of the program calling `submit`."""
    import warnings

    # By file and not by number: a blocking call has more frames of this package than an awaited one.
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and Path(frame.f_code.co_filename).parent == Path(__file__).parent:
        frame = frame.f_back
        level += 1
    for note in notes:
        warnings.warn(note, stacklevel=level)


def _as_list(words: str | Sequence[str] | None) -> list[str] | None:
    """Returns a text as a list of this one text; a sequence as a list; None for None."""
    return [words] if isinstance(words, str) else None if words is None else list(words)
