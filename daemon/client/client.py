"""`Client`: the daemon's API, one method for each thing it does. Blocking; raises the errors of `rftd.ops.errors`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from rftd.daemon.client import replies
from rftd.daemon.client.address import find_daemon
from rftd.daemon.client.errors import error_of
from rftd.daemon.client.lengths import Lengths
from rftd.daemon.settings import Settings
from rftd.ops.decoding import json_decoder
from rftd.ops.errors import UnreachableError, WaitTimeoutError

R = TypeVar("R")
Parameters = Mapping[str, str | int | float | bool | Sequence[str] | None]


class Answer(Generic[R]):
    """One answer: as the daemon sent it, and as we read it."""

    def __init__(self, body: bytes, kind: type[R]) -> None:
        self.body = body
        self.value: R = json_decoder(kind).decode(body)

    def plain(self) -> Any:
        """All of it, for output in a machine-readable form."""
        return msgspec.json.decode(self.body)


class Client:
    """A connection to one daemon. `settings` say where it is and how long to wait for it."""

    def __init__(self, settings: Settings, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self.url = find_daemon(settings, environ)
        self._timeout_s = settings.timeout_s
        token = environ.get("RFTD_TOKEN")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # A proxy of the environment is for the internet, not for a daemon next door.
        self._http = httpx.Client(base_url=self.url, timeout=settings.timeout_s, headers=headers, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def submit(
        self, config: Mapping[str, Any], *, labels: Mapping[str, str], request_id: str
    ) -> Answer[replies.Submitted]:
        """Hands in an experiment."""
        body = {"config": config, "labels": labels}
        return Answer(self._post("/v1/experiments", body, request_id), replies.Submitted)

    def fork(
        self,
        name: str,
        *,
        at_step: int,
        overrides: Sequence[str],
        fork_name: str | None,
        labels: Mapping[str, str],
        request_id: str,
    ) -> Answer[replies.Forked]:
        """Hands in an experiment that goes on from a step of another."""
        body = {"at_step": at_step, "set": overrides, "name": fork_name, "labels": labels}
        return Answer(self._post(f"/v1/experiments/{_quoted(name)}/fork", body, request_id), replies.Forked)

    def command(self, verb: str, name: str, *, reason: str, request_id: str) -> Answer[replies.Commanded]:
        """Pauses, resumes or cancels an experiment."""
        path = f"/v1/experiments/{_quoted(name)}/{verb}"
        return Answer(self._post(path, {"reason": reason}, request_id), replies.Commanded)

    def prioritize(self, name: str, priority: int, *, reason: str, request_id: str) -> Answer[replies.Commanded]:
        """Changes the priority of an experiment."""
        body = {"priority": priority, "reason": reason}
        return Answer(self._post(f"/v1/experiments/{_quoted(name)}/prioritize", body, request_id), replies.Commanded)

    def tag(
        self, name: str, experience: str, priority: float, *, reason: str, request_id: str
    ) -> Answer[replies.Commanded]:
        """Changes the priority of an experience and of its group."""
        path = f"/v1/experiments/{_quoted(name)}/experiences/{_quoted(experience)}/prioritize"
        return Answer(self._post(path, {"priority": priority, "reason": reason}, request_id), replies.Commanded)

    def give_up(self, name: str, experience: str, *, reason: str, request_id: str) -> Answer[replies.Commanded]:
        """Retires an experience whose payload is gone for good."""
        path = f"/v1/experiments/{_quoted(name)}/experiences/{_quoted(experience)}/give-up"
        return Answer(self._post(path, {"reason": reason}, request_id), replies.Commanded)

    def keep(self, verb: str, name: str, body: Mapping[str, Any], *, request_id: str) -> Answer[replies.Commanded]:
        """Archives, restores or removes an experiment."""
        return Answer(self._post(f"/v1/experiments/{_quoted(name)}/{verb}", body, request_id), replies.Commanded)

    def experiments(self, **parameters: str | int | Sequence[str] | None) -> Answer[replies.Summaries]:
        """The list of experiments."""
        return Answer(self._get("/v1/experiments", parameters), replies.Summaries)

    def summary(self, name: str, *, after: str | None = None) -> Answer[replies.Summary]:
        """The line of one experiment in that list: cheap enough to be asked for often."""
        return Answer(self._get(f"/v1/experiments/{_quoted(name)}/summary", {"after": after}), replies.Summary)

    def experiment(self, name: str, *, after: str | None = None) -> Answer[replies.Page]:
        """The page of one experiment."""
        return Answer(self._get(f"/v1/experiments/{_quoted(name)}", {"after": after}), replies.Page)

    def experiences(self, name: str, parameters: Parameters) -> Answer[replies.Experiences]:
        """Experiences that pass a filter."""
        return Answer(self._get(f"/v1/experiments/{_quoted(name)}/experiences", parameters), replies.Experiences)

    def experience(self, name: str, id: str, *, tokens: bool) -> Answer[replies.ExperiencePage]:
        """One experience."""
        path = f"/v1/experiments/{_quoted(name)}/experiences/{_quoted(id)}"
        return Answer(self._get(path, {"tokens": tokens}), replies.ExperiencePage)

    def lengths(self, name: str, *, stage: int | None) -> Answer[Lengths]:
        """Lengths of responses, generated and trained."""
        return Answer(self._get(f"/v1/experiments/{_quoted(name)}/lengths", {"stage": stage}), Lengths)

    def events(self, name: str, parameters: Parameters) -> Answer[replies.Events]:
        """A page of events."""
        wait_s = float(str(parameters.get("wait_s") or 0))
        body = self._get(f"/v1/experiments/{_quoted(name)}/events", parameters, extra_s=wait_s)
        return Answer(body, replies.Events)

    def why(self, name: str) -> Answer[replies.Why]:
        """What each role of an experiment does or waits for."""
        return Answer(self._get(f"/v1/experiments/{_quoted(name)}/why", {}), replies.Why)

    def lineage(self, id: str, **parameters: str | int | None) -> Answer[replies.Lineage]:
        """What a thing was made of, and what became of it."""
        return Answer(self._get("/v1/lineage", {"id": id, **parameters}), replies.Lineage)

    def dead_letters(self, **parameters: str | int | bool | None) -> Answer[replies.DeadLetters]:
        """What was set aside."""
        return Answer(self._get("/v1/dead-letters", parameters), replies.DeadLetters)

    def dead_letter(self, id: str) -> Answer[replies.DeadLetterPage]:
        """One of it."""
        return Answer(self._get("/v1/dead-letters/one", {"id": id}), replies.DeadLetterPage)

    def decide(self, verdict: str, id: str, *, by: str, reason: str, request_id: str) -> Answer[replies.Decided]:
        """Retries or drops one; `verdict` is `retry` or `drop`."""
        body = {"id": id, "by": by, "reason": reason}
        return Answer(self._post(f"/v1/dead-letters/{verdict}", body, request_id), replies.Decided)

    def logs(self, name: str, parameters: Parameters) -> Answer[replies.Lines]:
        """A page of log lines."""
        return Answer(self._get(f"/v1/experiments/{_quoted(name)}/logs", parameters), replies.Lines)

    def version(self) -> Answer[replies.Version]:
        """What the daemon is."""
        return Answer(self._get("/version", {}), replies.Version)

    def readiness(self) -> tuple[bool, str]:
        """Whether the daemon is ready, and what it says. Raises UnreachableError."""
        answer = self._send(self._http.build_request("GET", "/readyz"))
        return answer.status_code == 200, answer.text.strip()

    def pages(self, name: str, *, after: str | None = None) -> Iterator[Answer[replies.Page]]:
        """The page of an experiment whenever it changed, until the experiment has ended."""
        timeout = httpx.Timeout(self._timeout_s, read=max(self._timeout_s, 60.0))  # the daemon says something each 15 s
        request = self._http.build_request(
            "GET", f"/v1/experiments/{_quoted(name)}/stream", params=_given({"after": after}), timeout=timeout
        )
        answer = self._send(request, stream=True)
        try:
            if answer.status_code >= 400:
                raise error_of(answer.status_code, answer.read(), self.url)
            yield from _pages(answer.iter_lines())
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        finally:
            answer.close()

    def _get(self, path: str, parameters: Parameters, *, extra_s: float = 0.0) -> bytes:
        timeout = httpx.Timeout(self._timeout_s, read=self._timeout_s + extra_s)
        return self._ask(self._http.build_request("GET", path, params=_given(parameters), timeout=timeout))

    def _post(self, path: str, body: Mapping[str, Any], request_id: str) -> bytes:
        return self._ask(
            self._http.build_request(
                "POST",
                path,
                content=msgspec.json.encode(body),
                headers={"Content-Type": "application/json", "Idempotency-Key": request_id},
            )
        )

    def _ask(self, request: httpx.Request) -> bytes:
        answer = self._send(request)
        if answer.status_code >= 400:
            raise error_of(answer.status_code, answer.content, self.url)
        return answer.content

    def _send(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        try:
            return self._http.send(request, stream=stream)
        except httpx.ConnectTimeout as error:
            raise self._unreachable(error) from error
        except httpx.TimeoutException as error:
            raise WaitTimeoutError(
                f"no answer within {self._timeout_s:g} s", where=self.url, fix="give --timeout; the command may be done"
            ) from error
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.TransportError) -> UnreachableError:
        return UnreachableError(
            f"no daemon answers: {str(error) or type(error).__name__}",
            where=self.url,
            fix="start one with `rftd serve`, or name its address with --server",
        )


def _pages(lines: Iterator[str]) -> Iterator[Answer[replies.Page]]:
    event = ""
    for line in lines:
        if line.startswith("event: "):
            event = line.removeprefix("event: ")
        elif line.startswith("data: ") and event == "page":
            yield Answer(line.removeprefix("data: ").encode(), replies.Page)
        elif line.startswith("data: ") and event == "end":
            return


def _given(parameters: Parameters) -> dict[str, Any]:
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in parameters.items()
        if value is not None
    }


def _quoted(part: str) -> str:
    return quote(part, safe="")
