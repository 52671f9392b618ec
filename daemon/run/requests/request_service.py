"""`RequestService`: carries out commands sent by other programs as records, and answers each refusal in the log.

    record ─► open ─► command of the API ─► the event recording it, under the key of source and id ─► answered
                              └── refused ─► experiment.rejected, naming the record ─► answered

The open requests are a fold of the log (`rftd.streams.folds.requests`). A daemon killed between any two lines of this
file therefore continues correctly: a recorded command is not given twice, and a refusal is written once.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any, Final
from uuid import UUID

from rftd.daemon.cli.output.failure import leaves, parts
from rftd.daemon.http.api.bodies import Body, body_of
from rftd.daemon.http.views import commands, tasks
from rftd.daemon.http.views.route import CommandRoute
from rftd.daemon.run.operations import Operations
from rftd.daemon.run.registry import Registry, named_entry
from rftd.daemon.trust.asker import PRODUCER
from rftd.ops.cancelling import end_if_cancelled
from rftd.ops.clock import Clock
from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import (
    FencedError,
    LogFullError,
    NotFoundError,
    RftdError,
    UnreachableError,
    UsageError,
    WaitTimeoutError,
)
from rftd.ops.ids import NAMESPACE, derive
from rftd.ops.logs import Logger
from rftd.ops.metrics import Metrics
from rftd.ops.redaction import mask_text
from rftd.ops.tracing import conventions as names
from rftd.ops.tracing.trace_context import parsed
from rftd.ops.tracing.tracer import SpanKind, Tracer, current
from rftd.streams.events.experiment import ExperimentRejected, RequestRef
from rftd.streams.folds.answered_requests import OpenRequest
from rftd.streams.log.append_retry import append_when_space
from rftd.streams.log.codec import Writer
from rftd.streams.log.log import EventLog
from rftd.streams.log.requests import SPECVERSION, TYPES, CloudEvent, request_in

ROUTES: Final[Mapping[str, CommandRoute[Any, Any]]] = {
    TYPES + route.name: route
    for route in (
        *(commands.submit, commands.pause, commands.resume, commands.cancel, commands.prioritize),
        *(tasks.add_tasks, tasks.end_tasks),
    )
}
"""Command route of each event type."""
_JSON: Final = "application/json"
"""Media type of JSON, the usual form of a command's body."""
_NULL: Final = b"null"
"""JSON value that counts as a missing body."""

POLL_INTERVAL_S: Final = 0.5
"""Seconds between two passes over the open requests."""
LATER: Final = (UnreachableError, WaitTimeoutError, LogFullError, FencedError)
"""Errors of a log that is temporarily away or full: the request stays open."""
_RETRY_S: Final = 2.0
"""Pause in seconds after a `LATER` error."""
_REASON_CHARS: Final = 4000
"""Maximum number of characters in the recorded reason of a refusal."""
_SHOWN_CHARS: Final = 200
"""Maximum number of characters of a request's attribute in logs and refusals."""
_UNKNOWN_TYPE_LABEL: Final = "other"
"""Metric label of requests of unknown types."""
_HEADER: Final = "Authorization"
"""Name of the field in errors about the asker, dropped from refusals."""
_BUG: Final = "this is a bug in rftd, not in the request; see the daemon's log"
"""Reason recorded for an unexpected exception."""


@dataclass(frozen=True, slots=True)
class RequestedCommand:
    """A request of another program, decoded into a command route of the API with body and path parameters."""

    route: CommandRoute[Any, Any]
    """Route of the API carrying out the command."""
    body: Body[Any]
    """Decoded body of the command, with line numbers of a YAML text."""
    parameters: Mapping[str, str]
    """Values of the route's path parameters, by name; empty for a route without parameters."""


def requested_command(event: CloudEvent) -> RequestedCommand:
    """Decodes a CloudEvent into the command requested. Raises UsageError for an invalid event, and the errors of an API
    body.

    Decoding a large body may block for a while.
    """
    if (version := event.needed("specversion")) != SPECVERSION:
        unsupported = f"{version[:20]!r} is not a supported version of CloudEvents"
        raise UsageError(unsupported, field="specversion", fix=f"write {SPECVERSION!r}")
    for name in ("source", "id"):
        event.needed(name)
    route = ROUTES.get(kind := event.needed("type"))
    if route is None:
        raise UsageError(f"{kind[:200]!r} is no request", field="type", fix=f"one of {', '.join(ROUTES)}")
    parameters = {"name": event.needed("subject")} if "{name}" in route.path else {}
    content_type = event.text("datacontenttype")
    body_bytes = _body_of(event, content_type)
    if not body_bytes and not route.optional:
        raise UsageError("there is no data", field="data", fix=f"write the body of POST {route.path} there")
    return RequestedCommand(route, body_of(body_bytes, content_type, route, field="datacontenttype"), parameters)


def _body_of(event: CloudEvent, content_type: str) -> bytes:
    """Returns the event's body as bytes, decoded from `data` or `data_base64`; empty without either. Raises
    UsageError.
    """
    plain = bytes(event.data)
    encoded = bytes(event.data_base64)
    plain = b"" if plain == _NULL else plain
    encoded = b"" if encoded == _NULL else encoded
    if plain and encoded:
        raise UsageError("both data and data_base64 are there", field="data", fix="leave one out")
    try:
        if encoded:
            return b64decode(json_decoder(str).decode(encoded), validate=True)
        if plain and not _is_json(content_type):
            return json_decoder(str).decode(plain).encode()
    except (*UNREADABLE, ValueError) as error:
        field = "data_base64" if encoded else "data"
        fix = "write it as a JSON string" if plain else "encode it as RFC 4648 has it"
        raise UsageError(f"it is no {'base64' if encoded else 'text'}: {error}", field=field, fix=fix) from None
    return plain


def _is_json(content_type: str) -> bool:
    """True for a content type of JSON, and for none."""
    media = content_type.partition(";")[0].strip().lower()
    return media in ("", _JSON) or media.endswith("+json")


class RequestService:
    """Executes commands sent by other programs as records of `rftd.requests`, one at a time, and records each refusal.

    The order is that of arrival, except that commands (for example a submission) overtake tasks added to a queue.
    """

    def __init__(
        self,
        log: EventLog,
        operations: Operations,
        caught_up: Callable[[], Awaitable[Registry]],
        writer: Writer,
        *,
        clock: Clock,
        logger: Logger,
        metrics: Metrics,
        tracer: Tracer | None = None,
    ) -> None:
        """`caught_up` brings the registry to the log's present end; with a `tracer` each answer is a span.

        Anybody with write access to `rftd.requests` may ask, under any name: commands run with the rights of the asker
        PRODUCER.
        """
        self.operations = operations.for_asker(PRODUCER)
        """Commands with the rights of other programs."""
        self._log = log
        self._caught_up = caught_up
        self._writer = writer
        self._clock = clock
        self._logger = logger
        self._metrics = metrics
        self._tracer = tracer
        self._done: set[str] = set()
        """Positions of requests already carried out under another record: no further event will answer them."""
        self._reported_waits: set[str] = set()
        """Positions of requests reported as waiting in the daemon's log."""

    async def run(self) -> None:
        """Answers open and arriving requests until cancelled, looking twice a second."""
        registry = await self._caught_up()
        await self.resume(registry)
        while True:
            # Not read again here: the supervisor refreshes the registry twice a second, and this loop only reads the
            # outcome.
            if not await self.answer(registry):
                await self._clock.sleep(_RETRY_S)
            await self._clock.sleep(POLL_INTERVAL_S)

    async def resume(self, registry: Registry) -> None:
        """Repeats submissions interrupted by a crash between their two appends; repeating a completed one changes
        nothing.
        """
        for request in registry.requests.cut_off():
            await self._answer(request, patient=False)

    async def answer(self, registry: Registry) -> bool:
        """Executes or refuses the open requests once. Returns False if a request has to wait for an unreachable log or
        run.
        """
        open = registry.requests.open
        not_found_once: dict[str, OpenRequest] = {}
        several = len({request.position.partition for request in open.values()}) > 1
        unanswered = False
        for request in self._queue(registry, not_found_once):
            position = str(request.position)
            try:
                await self._answer(request, patient=position not in not_found_once and several)
            except NotFoundError:
                # Partitions have no mutual order: the named experiment may be submitted by a record read later.
                not_found_once[position] = request
            # Only this request waits: the unreachable part may concern this request alone, and later requests may be
            # somebody else's.
            except LATER as error:
                end_if_cancelled()
                unanswered = True
                if position not in self._reported_waits:
                    self._logger.warning("request.waits", position=position, code=error.code, reason=error.what)
                self._reported_waits.add(position)
            else:
                await self._caught_up()
        self._done &= registry.requests.open.keys()
        self._reported_waits &= registry.requests.open.keys()
        return not unanswered

    def _queue(self, registry: Registry, not_found_once: Mapping[str, OpenRequest]) -> Iterator[OpenRequest]:
        """Yields the open requests: before each task every command read by then, and at the end `not_found_once` again.

        `not_found_once` are requests naming an unknown experiment at their first try. Tasks arriving during the call
        are left for the next call.
        """
        requests = registry.requests
        tried: set[str] = set()

        def commands() -> list[str]:
            # New ones stand at the end: however many older ones are still open, none is inspected again.
            new_commands = list(takewhile(lambda position: position not in tried, reversed(requests.commands)))
            tried.update(new_commands)
            return new_commands[::-1]

        for task in chain([position for position in requests.open if position not in requests.commands], [""]):
            for position in chain(commands(), [task]):
                # An earlier record of the same request may have been answered meanwhile.
                if position in requests.open and position not in self._done:
                    yield requests.open[position]
        yield from (request for position, request in not_found_once.items() if position in requests.open)

    async def find(self, name_or_id: str) -> UUID:
        """Returns the id of the experiment named in a request, from the log because tables may lag. Raises as
        `named_entry`.
        """
        return named_entry(await self._caught_up(), name_or_id).id

    async def _answer(self, request: OpenRequest, *, patient: bool) -> None:
        """Executes or refuses one request. Raises the `LATER` errors; if `patient`, also NotFoundError instead of
        refusing.
        """
        partition, offset = request.position
        records = await self._log.read(partition, offset, max_records=1)
        event = request_in(records[0]) if records and records[0].offset == offset else None
        if event is None:  # the record existed when it was folded
            raise UnreachableError("the record is not there", where=str(request.position), fix="run rftd verify")
        with self._span(request, event):
            await self._answer_event(request, event, patient=patient)

    def _span(self, request: OpenRequest, event: CloudEvent) -> AbstractContextManager[object]:
        """Returns the span of an answer: in the producer's trace, sampled as there, if the request names a trace."""
        if self._tracer is None:
            return nullcontext()
        partition = request.position.partition
        about = names.messaging("process", partition.stream, partition.number)
        caller = parsed(event.shown("traceparent"))
        name = f"process {partition.stream}"
        span = self._tracer.begin(name, SpanKind.CONSUMER, parent=caller, always=caller is None, attributes=about)
        return nullcontext() if span is None else span

    async def _answer_event(self, request: OpenRequest, event: CloudEvent, *, patient: bool) -> None:
        """Carries out the command of a decoded request, or refuses the request; parameters as of `_answer`."""
        try:
            receipt = await self._carry_out(event)
        except TimeoutError:
            # The command was given up and will not be repeated: an event it wrote all the same answers the request.
            end_if_cancelled()
            await self._refuse(request, event, _timeout_error())
        except LATER:
            raise
        except Exception as error:
            end_if_cancelled()
            if patient and isinstance(error, NotFoundError):
                raise
            await self._refuse(request, event, error)
        else:
            self._done.add(str(request.position))
            self._count(event, "accepted")
            self._logger.info("request.accepted", **self._log_fields(request, event), experiment=receipt)

    async def _carry_out(self, event: CloudEvent) -> str:
        """Carries out a command and returns its experiment's id. Raises the command's errors."""
        command = await asyncio.to_thread(requested_command, event)
        assert event.key is not None
        with command.body.lines():
            async with asyncio.timeout(command.route.timeout_s):
                receipt = await command.route.work(self, command.body.value, event.key, **command.parameters)
        return str(receipt.id)

    async def _refuse(self, request: OpenRequest, event: CloudEvent, error: Exception) -> None:
        """Records a refusal with the error's code and reason, in the log, the metrics and the daemon's log."""
        if (span := current()) is not None:
            span.fail(error)
        rftd_error = next((leaf for leaf in leaves(error) if isinstance(leaf, RftdError)), None)
        if rftd_error is None:
            self._logger.error("request.bug", position=str(request.position), exc_info=error)
        code = rftd_error.code if rftd_error is not None else "RFTD-BUG"
        reason = _text(rftd_error) if rftd_error is not None else _BUG
        position = str(request.position)
        # An id used by no other experiment: refusing a pause must not end the experiment to be paused.
        nobody = derive(NAMESPACE, "refused request", position)
        named = {name: mask_text(event.shown(name))[:_SHOWN_CHARS] for name in ("type", "source", "id")}
        rejected = ExperimentRejected(code=code, reason=reason, request=RequestRef(place=position, **named))
        id = derive(nobody, "rejected")
        draft = self._writer.draft(rejected, experiment=nobody, id=id, correlation=request.key)
        await append_when_space(self._log, [draft], clock=self._clock)
        self._count(event, "refused")
        self._logger.warning("request.refused", **self._log_fields(request, event), code=code, reason=reason)

    def _log_fields(self, request: OpenRequest, event: CloudEvent) -> dict[str, str]:
        """Returns position and attributes of a request for a line of the daemon's log, masked and shortened."""
        shown = {name: mask_text(event.shown(name))[:_SHOWN_CHARS] for name in ("type", "source", "id", "subject")}
        return {"position": str(request.position), **shown}

    def _count(self, event: CloudEvent, outcome: str) -> None:
        """Counts a request in the metrics by type and `outcome`: `accepted` or `refused`."""
        kind = event.shown("type")
        self._metrics.requests.labels(
            kind.removeprefix(TYPES) if kind in ROUTES else _UNKNOWN_TYPE_LABEL, outcome
        ).inc()


def _timeout_error() -> RftdError:
    """Returns the error recorded for a command that timed out."""
    return UsageError("the command timed out", fix="send it again with another id")


def _text(error: RftdError) -> str:
    """Returns the error as one text: each finding with its fix."""
    # Records have no headers: a header's name would only mask the following word as a credential.
    sentences = [
        " ".join(filter(None, (finding.where and f"{finding.where}:", _field_of(finding), finding.what)))
        + (f"; fix: {finding.fix}" if finding.fix else "")
        for finding in parts(error)
    ]
    return mask_text("\n".join(sentences))[:_REASON_CHARS]


def _field_of(finding: RftdError) -> str:
    """Returns the field of a finding with a colon, for a line of text; empty without a field."""
    return f"{finding.field}:" if finding.field and finding.field != _HEADER else ""
