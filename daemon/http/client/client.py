"""`Client`: requests views of `rftd.daemon.http.views` from a daemon. Blocking; errors of `rftd.ops.errors`."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

import httpx
import msgspec

from rftd.daemon.cli.settings import Settings, data_folder
from rftd.daemon.http.client.address import NoDaemonError, OtherDaemonError, find_address, no_address, trusted_by
from rftd.daemon.http.client.errors import error_of, stranger
from rftd.daemon.http.views.experiments import ENDED, ExperimentPage
from rftd.daemon.http.views.route import STREAM, CommandRoute, ReadRoute, url_of
from rftd.daemon.http.views.wire import from_wire, to_wire
from rftd.ops import limits
from rftd.ops.clock import SystemClock
from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import NotFoundError, RftdError, UnreachableError, WaitTimeoutError
from rftd.ops.health import Verdict
from rftd.ops.ids import SystemIds

if TYPE_CHECKING:
    from rftd.streams.log.backend import LogUrl
    from rftd.streams.log.log import EventLog


class CertificateError(UnreachableError):
    """The daemon's certificate is not for this address, or nobody that this machine trusts signed it."""

    code = "RFTD-NET-002"
    remedy = (
        "Use the name that the certificate is for; for one that your own authority signed, set `SSL_CERT_FILE` to that "
        "authority's certificate."
    )


R = TypeVar("R", bound=msgspec.Struct)
B = TypeVar("B", bound=msgspec.Struct)
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


class Client:
    """A connection to one daemon; `settings` give its address and the time-out."""

    def __init__(self, settings: Settings, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._address = find_address(settings, environ)
        self.url = self._address.url
        self._timeout_s = settings.timeout_s
        self._ids = SystemIds(SystemClock())
        headers = self._address.headers
        try:
            # A proxy from the environment is for the internet, not for a nearby daemon.
            self._http = httpx.Client(
                base_url=self.url,
                timeout=settings.timeout_s,
                headers=headers,
                verify=trusted_by(self.url),
                trust_env=False,
            )
        except httpx.InvalidURL as error:
            raise no_address(self.url) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def ask(self, read: ReadRoute[R], *, wait_s: float = 0.0, **parameters: Parameter) -> Answer[R]:
        """Requests a read. The daemon may wait up to `wait_s` before answering, sent as a parameter too."""
        path, query = read.url(parameters)
        if wait_s:
            query["wait_s"] = wait_s
        timeout = httpx.Timeout(self._timeout_s, read=self._timeout_s + wait_s)
        request = self._http.build_request("GET", path, params=_set_parameters(query), timeout=timeout)
        return self._ask(request, read.answer)

    def send(self, command: CommandRoute[B, R], body: B, *, request_id: str | None = None, **places: str) -> Answer[R]:
        """Sends a command and returns its receipt; repeated with one `request_id`, it takes effect once. Default: a
        fresh id.

        `places` are the parameters in the command's path.
        """
        path, _ = command.url(places)
        # Always with a key, even without a chosen one: a proxy repeating a request must not cause two changes.
        headers = {"Content-Type": "application/json", "Idempotency-Key": request_id or str(self._ids.new())}
        request = self._http.build_request("POST", path, content=msgspec.json.encode(body), headers=headers)
        return self._ask(request, command.answer)

    def readiness(self) -> Readiness:
        """Returns the daemon's verdict on itself, without a token. Raises UnreachableError."""
        answer = self._send(self._http.build_request("GET", "/readyz", params={"verbose": "1"}))
        try:
            verdict = json_decoder(Verdict).decode(answer.content)
        except UNREADABLE as error:
            raise stranger(answer.status_code, self.url) from error
        try:
            clock_s = parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()
        except ValueError:
            clock_s = None
        return Readiness(verdict, clock_s)

    @property
    def has_token(self) -> bool:
        """True if a token is known for this daemon."""
        return bool(self._address.token.reveal())

    def metrics(self) -> str:
        """Returns the daemon's metrics in Prometheus format. Raises UnreachableError, UsageError (wrong token)."""
        answer = self._send(self._http.build_request("GET", "/metrics"))
        if answer.status_code >= 400:
            raise error_of(answer.status_code, answer.content, self.url)
        return answer.text

    def pages(self, name: str, *, after: str | None = None) -> Iterator[Answer[ExperimentPage]]:
        """Yields the page of an experiment after every change, until the experiment has ended."""
        # The daemon sends at least every 15 s.
        timeout = httpx.Timeout(self._timeout_s, read=max(self._timeout_s, 60.0))
        path, query = url_of(STREAM, {"name": name, "after": after})
        request = self._http.build_request("GET", path, params=_set_parameters(query), timeout=timeout)
        answer = self._send(request, stream=True)
        try:
            if answer.status_code >= 400:
                raise error_of(answer.status_code, answer.read(), self.url)
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                raise stranger(answer.status_code, self.url)
            yield from self._pages(answer)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        except httpx.DecodingError as error:
            raise stranger(answer.status_code, self.url) from error
        finally:
            answer.close()

    def _pages(self, answer: httpx.Response) -> Iterator[Answer[ExperimentPage]]:
        event = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: ") and event == "page":
                page_json = line.removeprefix("data: ").encode()
                yield Answer(page_json, ExperimentPage, status=answer.status_code, url=self.url)
            elif line.startswith("data: ") and event == "end":
                return

    def _ask(self, request: httpx.Request, kind: type[R]) -> Answer[R]:
        answer = self._send(request)
        if answer.status_code >= 400:
            raise error_of(answer.status_code, answer.content, self.url)
        return Answer(answer.content, kind, status=answer.status_code, url=self.url)

    def _send(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        try:
            response = self._http.send(request, stream=stream)
        # Nothing was sent, so the command was not carried out; after any other time-out it may have been.
        except httpx.ConnectTimeout as error:
            raise self._unreachable(error) from error
        except httpx.TimeoutException as error:
            raise WaitTimeoutError(
                f"no answer within {self._timeout_s:g} s",
                where=self.url,
                fix="raise --timeout; the command may still have taken effect",
            ) from error
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        except httpx.DecodingError as error:
            raise UnreachableError(f"the answer is none of rftd's: {error}", where=self.url) from error
        except UnicodeError as error:  # a host name no name server can encode
            raise no_address(self.url) from error
        if response.status_code == HTTPStatus.MISDIRECTED_REQUEST and self._address.folder_id:
            response.close()
            raise OtherDaemonError(self._address)
        return response

    def _unreachable(self, error: httpx.TransportError) -> UnreachableError:
        if isinstance(error, httpx.ConnectError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
            return CertificateError(str(error).partition(": ")[2] or str(error), where=self.url)
        return UnreachableError(
            f"no daemon answers: {str(error) or type(error).__name__}",
            where=self.url,
            fix="start one with `rftd serve`, or name its address with --server",
        )


def nobody_listens(error: RftdError) -> bool:
    """True if the error means an absent daemon: nothing was sent, or only to a port refusing connections."""
    if isinstance(error, CertificateError):
        return False
    return isinstance(error, NoDaemonError) or isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout)


def follow(
    client: Client,
    name: str,
    *,
    after: str | None = None,
    patience_s: float,
    on_away: Callable[[UnreachableError], None] | None = None,
) -> Iterator[Answer[ExperimentPage]]:
    """Yields the page after every change, until the experiment has ended.

    A restarting daemon is waited for, and `on_away` called after each failed attempt. Raises UnreachableError after
    `patience_s` without a daemon.
    """
    failures = 0
    shown = False
    away_s: float | None = None
    name_or_id = name
    while True:
        try:
            for page in client.pages(name_or_id, after=after):
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
            # Before the first page an error is the caller's mistake, a wrong address or no daemon; after it, a restart.
            if not shown:
                raise
            # Not since the last page: a waiting experiment has none for a long time.
            away_s = time.monotonic() if away_s is None else away_s
            if time.monotonic() - away_s > patience_s:
                raise
            if on_away is not None:
                on_away(error)
        failures += 1
        time.sleep(limits.RESTART_BACKOFF_S[min(failures, len(limits.RESTART_BACKOFF_S)) - 1])


def _set_parameters(parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    return {
        name: str(parameter).lower() if isinstance(parameter, bool) else parameter
        for name, parameter in parameters.items()
        if parameter is not None
    }


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
