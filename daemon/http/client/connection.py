"""`DaemonConnection`: reads and commands of one daemon as coroutines, over any `Transport`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, TypeVar

import httpx
import msgspec

from rftd.daemon.cli.settings import Settings
from rftd.daemon.http.client.address import Address, OtherDaemonError, find_address, no_address
from rftd.daemon.http.client.answer import Answer, Parameter, Readiness
from rftd.daemon.http.client.errors import CertificateError, error_of, stranger
from rftd.daemon.http.client.transport import Transport
from rftd.daemon.http.views.experiments import ExperimentPage
from rftd.daemon.http.views.moment import ENDED
from rftd.daemon.http.views.route import STREAM, CommandRoute, FileRoute, ReadRoute, url_of
from rftd.daemon.run.consequence import Consequence
from rftd.ops import limits
from rftd.ops.clock import SystemClock
from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import RftdError, UnreachableError, WaitTimeoutError
from rftd.ops.health import Verdict
from rftd.ops.ids import SystemIds


class PageState:
    """An experiment's page as plain JSON, with the id of its newest event; kept over restarts of the daemon."""

    def __init__(self) -> None:
        self.id = ""
        """Id of the newest event; empty before the first."""
        self._page: dict[str, Any] = {}
        """The page as plain JSON; empty before the first."""

    def renew(self, event: str, id: str, data: bytes) -> bytes:
        """Returns the page as JSON after an event `page` or `change`. Raises the errors of a decoder for other data."""
        content = msgspec.json.decode(data)
        if event == "page":
            self._page = content
        else:
            for name, field_content in content["set"].items():
                self._set_at(name, field_content)
            for name, end in content["ends"].items():
                self._set_at(name, [*self._list_at(name)[end["drop"] :][: end["from"]], *end["items"]])
        self.id = id
        return msgspec.json.encode(self._page)

    def _list_at(self, name: str) -> list[Any]:
        """Returns the list named `FIELD` or `experiment.FIELD`."""
        holder, field = self._holder(name)
        elements: list[Any] = holder[field]
        return elements

    def _set_at(self, name: str, field_content: Any) -> None:
        """Replaces a part named `FIELD` or `experiment.FIELD`."""
        holder, field = self._holder(name)
        holder[field] = field_content

    def _holder(self, name: str) -> tuple[dict[str, Any], str]:
        """Returns the mapping with a part named `FIELD` or `experiment.FIELD`, and the field."""
        outer, _, inner = name.partition(".")
        return (self._page[outer], inner) if inner else (self._page, outer)


R = TypeVar("R", bound=msgspec.Struct)
"""Type of the view answered by a read or command."""
B = TypeVar("B", bound=msgspec.Struct)
"""Type of a command's body."""

_BUSY_STATUSES = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
"""Statuses of a daemon that wants to be asked again later."""


class DaemonConnection:
    """A connection to one daemon; `settings` give its address and the time-out."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        transport: Callable[[Address, float], Transport],
        *,
        patience_s: float = 0.0,
    ) -> None:
        """`patience_s` is the longest time for which a daemon is asked again after its restart, or while it is busy."""
        self._settings = settings
        self._environ = environ
        self.address = find_address(settings, environ)
        """Present address and token of the daemon."""
        self._timeout_s = settings.answer_timeout_s
        """Time-out of one request in seconds."""
        self._patience_s = patience_s
        self._answered = False
        """True once the daemon has answered: later failures may be a restart."""
        self._ids = SystemIds(SystemClock())
        """Source of request ids."""
        try:
            self._http = transport(self.address, settings.answer_timeout_s)
        except httpx.InvalidURL as error:
            raise no_address(self.address.url) from error

    @property
    def url(self) -> str:
        """Present address of the daemon."""
        return self.address.url

    async def close(self) -> None:
        """Closes all connections."""
        await self._http.close()

    async def pause(self, seconds: float) -> None:
        """Waits between two questions."""
        await self._http.pause(seconds)

    async def ask(self, read: ReadRoute[R], *, wait_s: float = 0.0, **parameters: Parameter) -> Answer[R]:
        """Requests a read. The daemon may wait up to `wait_s` before answering, sent as a parameter too."""
        path, query = read.url(parameters)
        if wait_s:
            query["wait_s"] = wait_s
        timeout = httpx.Timeout(self._timeout_s, read=self._timeout_s + wait_s)
        return await self._ask(
            lambda: self._http.build("GET", path, params=_set_parameters(query), timeout=timeout), read.answer
        )

    async def send(
        self, command: CommandRoute[B, R], body: B, *, request_id: str | None = None, **places: str
    ) -> Answer[R]:
        """Sends a command and returns its receipt; repeated with one `request_id`, it takes effect once. Default: a
        fresh id.

        `places` are the parameters in the command's path.
        """
        path, _ = command.url(places)
        # Always with a key, even without a chosen one: a proxy repeating a request must not cause two changes.
        headers = {"Content-Type": "application/json", "Idempotency-Key": request_id or str(self._ids.new())}
        content = msgspec.json.encode(body)
        timeout = self._timeout_of(command)
        return await self._ask(
            lambda: self._http.build("POST", path, content=content, headers=headers, timeout=timeout), command.answer
        )

    def _timeout_of(self, command: CommandRoute[Any, Any]) -> httpx.Timeout:
        """Returns the time-out of a command: the chosen one, else one that outlasts the daemon's own."""
        if self._settings.timeout_s is not None:
            return httpx.Timeout(self._timeout_s)
        return httpx.Timeout(self._timeout_s, read=self._timeout_s + command.timeout_s)

    async def rehearse(self, command: CommandRoute[B, Any], body: B, **places: str) -> Answer[Consequence]:
        """Sends a command as a dry run, and returns its consequence; `places` as in `send`."""
        path, _ = command.url(places)
        headers = {"Content-Type": "application/json"}
        content = msgspec.json.encode(body)
        dry = {"dry_run": "true"}
        timeout = self._timeout_of(command)
        return await self._ask(
            lambda: self._http.build("POST", path, content=content, headers=headers, params=dry, timeout=timeout),
            Consequence,
        )

    async def readiness(self) -> Readiness:
        """Returns the daemon's verdict on itself, without a token. Raises UnreachableError."""
        answer = await self._send_request(self._http.build("GET", "/readyz", params={"verbose": "1"}))
        try:
            verdict = json_decoder(Verdict).decode(answer.content)
        except UNREADABLE as error:
            raise stranger(answer.status_code, self.url) from error
        try:
            clock_s = parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()
        except ValueError:
            clock_s = None
        return Readiness(verdict, clock_s)

    async def metrics(self) -> str:
        """Returns the daemon's metrics in Prometheus format. Raises UnreachableError, UsageError (wrong token)."""
        answer = await self._send_request(self._http.build("GET", "/metrics"))
        if answer.status_code >= 400:
            raise error_of(answer.status_code, answer.content, self.url)
        return answer.text

    async def pages(
        self, name: str, *, after: str | None = None, state: PageState | None = None
    ) -> AsyncGenerator[Answer[ExperimentPage], None]:
        """Yields the page of an experiment after every change, until the experiment has ended.

        With the `state` of an interrupted call the daemon sends only what is new since.
        """
        state = PageState() if state is None else state
        # The daemon sends at least every 15 s.
        timeout = httpx.Timeout(self._timeout_s, read=max(self._timeout_s, 60.0))
        path, query = url_of(STREAM, {"name": name, "after": after})
        request = self._http.build("GET", path, params=_set_parameters(query), timeout=timeout)
        if state.id:
            request.headers["Last-Event-ID"] = state.id
        answer = await self._send_request(request, stream=True)
        try:
            if answer.status_code >= 400:
                raise error_of(answer.status_code, await self._http.read(answer), self.url)
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                raise stranger(answer.status_code, self.url)
            async with aclosing(self._http.lines(answer)) as lines:
                event = id = ""
                async for line in lines:
                    if line.startswith("event: "):
                        event = line.removeprefix("event: ")
                    elif line.startswith("id: "):
                        id = line.removeprefix("id: ")
                    elif line.startswith("data: ") and event in ("page", "change"):
                        try:
                            page_json = state.renew(event, id, line.removeprefix("data: ").encode())
                        except (*UNREADABLE, LookupError, TypeError, AttributeError) as error:
                            raise stranger(answer.status_code, self.url) from error
                        yield Answer(page_json, ExperimentPage, status=answer.status_code, url=self.url)
                    elif line.startswith("data: ") and event == "end":
                        return
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        except httpx.DecodingError as error:
            raise stranger(answer.status_code, self.url) from error
        finally:
            await self._http.end(answer)

    async def follow(
        self,
        name: str,
        *,
        after: str | None = None,
        patience_s: float,
        on_away: Callable[[UnreachableError], None] | None = None,
    ) -> AsyncGenerator[Answer[ExperimentPage], None]:
        """Yields the page after every change, until the experiment has ended.

        A restarting daemon is waited for, and `on_away` called after each failed attempt. Raises UnreachableError
        after `patience_s` without a daemon.
        """
        failures = 0
        shown = False
        away_s: float | None = None
        name_or_id = name
        state = PageState()
        while True:
            try:
                async with aclosing(self.pages(name_or_id, after=after, state=state)) as pages:
                    async for page in pages:
                        failures = 0
                        shown = True
                        away_s = None
                        # From here on by id: another experiment may take the name.
                        name_or_id = page.value.experiment.summary.id
                        after = None
                        yield page
                        if page.value.experiment.summary.state in ENDED:
                            return
            except UnreachableError as error:
                # Before the first page an error is the caller's mistake, a wrong address or no daemon; after it, a
                # restart.
                if not shown:
                    raise
                # Not since the last page: a waiting experiment has none for a long time.
                away_s = time.monotonic() if away_s is None else away_s
                if time.monotonic() - away_s > patience_s:
                    raise
                if on_away is not None:
                    on_away(error)
            failures += 1
            await self._http.pause(_backoff_s(failures))
            if away_s is not None:
                self._refresh_address()

    async def bytes_of(self, download: FileRoute, first: int, last: int, **parameters: Parameter) -> bytes:
        """Returns the bytes `first` to `last` of a file, both included. Raises the errors of `ask`."""
        path, query = download.url(parameters)
        headers = {"Range": f"bytes={first}-{last}", "Accept-Encoding": "identity"}
        answer = await self._patiently(
            lambda: self._http.build("GET", path, params=_set_parameters(query), headers=headers)
        )
        if answer.status_code >= 400:
            raise error_of(answer.status_code, answer.content, self.url)
        if len(answer.content) != last + 1 - first:
            raise UnreachableError(f"{len(answer.content)} bytes came, not {last + 1 - first}", where=self.url)
        return answer.content

    async def _ask(self, build: Callable[[], httpx.Request], kind: type[R]) -> Answer[R]:
        """Sends the request made by `build`, patiently, and returns the answer as a view. Raises the errors of the
        answer.
        """
        answer = await self._patiently(build)
        if answer.status_code >= 400:
            raise error_of(answer.status_code, answer.content, self.url)
        return Answer(answer.content, kind, status=answer.status_code, url=self.url)

    async def _patiently(self, build: Callable[[], httpx.Request]) -> httpx.Response:
        """Returns the response to a request, built anew for each attempt: a restarted daemon may have another port.

        Repetitions are harmless: reads change nothing, and every command carries an idempotency key.
        """
        deadline_s = time.monotonic() + self._patience_s
        failures = 0
        while True:
            pause_s = _backoff_s(failures + 1)
            try:
                answer = await self._send_request(build())
            except UnreachableError as error:
                # Before the first answer, an error is a wrong address or an absent daemon.
                lost = self._answered and isinstance(error.__cause__, httpx.TransportError)
                if not lost or isinstance(error, CertificateError) or time.monotonic() + pause_s > deadline_s:
                    raise
                self._refresh_address()
            else:
                self._answered = True
                if answer.status_code in _BUSY_STATUSES:
                    pause_s = max(pause_s, _retry_after_s(answer))
                if answer.status_code not in _BUSY_STATUSES or time.monotonic() + pause_s > deadline_s:
                    return answer
            failures += 1
            await self._http.pause(pause_s)

    def _refresh_address(self) -> None:
        """Finds the daemon's address anew and directs later requests there; without one, keeps the former address."""
        try:
            address = find_address(self._settings, self._environ)
        except RftdError:  # an absent daemon has no address; the former one is tried again
            return
        if address != self.address:
            self.address = address
            self._http.move(address)

    async def _send_request(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        """Sends a request once, and returns the response. Raises UnreachableError, WaitTimeoutError, UsageError for an
        impossible host name, or OtherDaemonError for another folder's daemon.
        """
        try:
            response = await self._http.send(request, stream=stream)
        # Nothing was sent, so the command was not carried out; after any other time-out it may have been.
        except httpx.ConnectTimeout as error:
            raise self._unreachable(error) from error
        except httpx.TimeoutException as error:
            raise WaitTimeoutError(
                f"no answer within {request.extensions['timeout']['read']:g} s",
                where=self.url,
                fix="raise --timeout; the command may still have taken effect",
            ) from error
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        except httpx.DecodingError as error:
            raise UnreachableError(f"the answer is none of rftd's: {error}", where=self.url) from error
        except UnicodeError as error:  # a host name no name server can encode
            raise no_address(self.url) from error
        if response.status_code == HTTPStatus.MISDIRECTED_REQUEST and self.address.folder_id:
            await self._http.end(response)
            raise OtherDaemonError(self.address)
        return response

    def _unreachable(self, error: httpx.TransportError) -> UnreachableError:
        """Returns the error for a failed connection: a refused certificate, or no daemon."""
        if isinstance(error, httpx.ConnectError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
            return CertificateError(str(error).partition(": ")[2] or str(error), where=self.url)
        return UnreachableError(
            f"no daemon answers: {str(error) or type(error).__name__}",
            where=self.url,
            fix="start one with `rftd serve`, or name its address with --server",
        )


def _backoff_s(failures: int) -> float:
    """Returns the pause in seconds after this many consecutive failures."""
    return limits.RESTART_BACKOFF_S[min(failures, len(limits.RESTART_BACKOFF_S)) - 1]


def _retry_after_s(answer: httpx.Response) -> float:
    """Returns the seconds of the header Retry-After; 0 without the header, and for a date in it."""
    seconds: str = answer.headers.get("Retry-After", "")
    return float(seconds) if seconds.isdigit() else 0.0


def _set_parameters(parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Returns the query parameters with a value, booleans as in JSON."""
    return {
        name: str(parameter).lower() if isinstance(parameter, bool) else parameter
        for name, parameter in parameters.items()
        if parameter is not None
    }
