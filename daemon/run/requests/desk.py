"""`RequestDesk`: carries out what other programs ask for by records, and says in the log why it refuses the others.

    record ─► open ─► command of the API ─► the event that it becomes, under the key of source and id ─► answered
                              └── refused ─► experiment.rejected, which names the record ─► answered

What is open is a fold of the log (`rftd.streams.folds.requests`). So a daemon that was killed between any two lines of
this file goes on where it was: a command whose event is there is not given twice, and a refusal is written once.
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
"""The command of each type."""
_JSON: Final = "application/json"
_NULL: Final = b"null"

LOOK_S: Final = 0.5
"""The pause between two looks at what is open."""
LATER: Final = (UnreachableError, WaitTimeoutError, LogFullError, FencedError)
"""The log is away, or full, for a while: the request stays open."""
_AGAIN_S: Final = 2.0
_REASON_CHARS: Final = 4000
_SHOWN_CHARS: Final = 200
_OTHER: Final = "other"
_HEADER: Final = "Authorization"
_BUG: Final = "this is a bug in rftd, not in the request; see the daemon's log"


@dataclass(frozen=True, slots=True)
class RequestedCommand:
    """One request that can be carried out."""

    route: CommandRoute[Any, Any]
    body: Body[Any]
    parameters: Mapping[str, str]
    """The values of the names in the route's path."""


def asked_by(event: CloudEvent) -> RequestedCommand:
    """The command that an event asks for. Raises UsageError and what a body of the API raises; may take a while."""
    if (version := event.needed("specversion")) != SPECVERSION:
        what = f"{version[:20]!r} is no version of CloudEvents that is known here"
        raise UsageError(what, field="specversion", fix=f"write {SPECVERSION!r}")
    for name in ("source", "id"):
        event.needed(name)
    route = ROUTES.get(kind := event.needed("type"))
    if route is None:
        raise UsageError(f"{kind[:200]!r} is no request", field="type", fix=f"one of {', '.join(ROUTES)}")
    parameters = {"name": event.needed("subject")} if "{name}" in route.path else {}
    content_type = event.text("datacontenttype")
    data = _data(event, content_type)
    if not data and not route.optional:
        raise UsageError("there is no data", field="data", fix=f"write the body of POST {route.path} there")
    return RequestedCommand(route, body_of(data, content_type, route, field="datacontenttype"), parameters)


def _data(event: CloudEvent, content_type: str) -> bytes:
    """The bytes of the body. Raises UsageError."""
    data = bytes(event.data)
    encoded = bytes(event.data_base64)
    data = b"" if data == _NULL else data
    encoded = b"" if encoded == _NULL else encoded
    if data and encoded:
        raise UsageError("both data and data_base64 are there", field="data", fix="leave one out")
    try:
        if encoded:
            return b64decode(json_decoder(str).decode(encoded), validate=True)
        if data and not _is_json(content_type):
            return json_decoder(str).decode(data).encode()
    except (*UNREADABLE, ValueError) as error:
        field = "data_base64" if encoded else "data"
        fix = "write it as a JSON string" if data else "encode it as RFC 4648 has it"
        raise UsageError(f"it is no {'base64' if encoded else 'text'}: {error}", field=field, fix=fix) from None
    return data


def _is_json(content_type: str) -> bool:
    media = content_type.partition(";")[0].strip().lower()
    return media in ("", _JSON) or media.endswith("+json")


class RequestDesk:
    """Answers one request at a time, in the order in which they were read; commands pass tasks."""

    def __init__(
        self,
        log: EventLog,
        operations: Operations,
        known: Callable[[], Awaitable[Registry]],
        writer: Writer,
        *,
        clock: Clock,
        logger: Logger,
        metrics: Metrics,
        tracer: Tracer | None = None,
    ) -> None:
        """`known` brings the registry to the log's present; with a `tracer` each answer is a span.

        Whoever may write on `rftd.requests` asks, under whatever name: the commands are those of the asker PRODUCER.
        """
        self.operations = operations.for_asker(PRODUCER)
        self._log = log
        self._known = known
        self._writer = writer
        self._clock = clock
        self._logger = logger
        self._metrics = metrics
        self._tracer = tracer
        self._done: set[str] = set()
        """Places of requests that were carried out before, under another record: no event will say so again."""
        self._told: set[str] = set()
        """Places of requests of which the daemon's log says that they wait."""

    async def run(self) -> None:
        """Answers what is open, and what arrives, until cancelled."""
        registry = await self._known()
        await self.resume(registry)
        while True:
            # Not read anew here: the supervisor does so twice a second, and this only looks at what it found.
            if not await self.answer(registry):
                await self._clock.sleep(_AGAIN_S)
            await self._clock.sleep(LOOK_S)

    async def resume(self, registry: Registry) -> None:
        """Ends what a kill cut off: a submission has two appends. Repeated without need, it changes nothing."""
        for request in registry.requests.cut_off():
            await self._answer(request, patient=False)

    async def answer(self, registry: Registry) -> bool:
        """Answers what is open. False if something is away for which one of them has to wait."""
        open = registry.requests.open
        again: dict[str, OpenRequest] = {}
        several = len({request.position.partition for request in open.values()}) > 1
        left = False
        for request in self._queue(registry, again):
            place = str(request.position)
            try:
                await self._answer(request, patient=place not in again and several)
            except NotFoundError:
                # Partitions have no order among them: what it names may be submitted by a record that was read later.
                again[place] = request
            # It waits alone: what is away may be its own affair, and those behind it are somebody else's.
            except LATER as error:
                end_if_cancelled()
                left = True
                if place not in self._told:
                    self._logger.warning("request.waits", position=place, code=error.code, reason=error.what)
                self._told.add(place)
            else:
                await self._known()
        self._done &= registry.requests.open.keys()
        self._told &= registry.requests.open.keys()
        return not left

    def _queue(self, registry: Registry, again: Mapping[str, OpenRequest]) -> Iterator[OpenRequest]:
        """The open requests: before each task the commands read by then, and those of `again` at the end.

        Tasks read meanwhile are left to the next round.
        """
        requests = registry.requests
        tried: set[str] = set()

        def commands() -> list[str]:
            # New ones stand at the end: whatever number of older ones is left open, none is looked at anew.
            new = list(takewhile(lambda place: place not in tried, reversed(requests.commands)))
            tried.update(new)
            return new[::-1]

        for task in chain([place for place in requests.open if place not in requests.commands], [""]):
            for place in chain(commands(), [task]):
                # An earlier record of the same request may have been answered meanwhile.
                if place in requests.open and place not in self._done:
                    yield requests.open[place]
        yield from (request for place, request in again.items() if place in requests.open)

    async def find(self, wanted: str) -> UUID:
        """The experiment that a request names, by the log alone: the tables may lag. Raises as `named_entry`."""
        return named_entry(await self._known(), wanted).id

    async def _answer(self, request: OpenRequest, *, patient: bool) -> None:
        """Carries it out or refuses it. Raises LATER, and NotFoundError instead of a refusal if `patient`."""
        partition, offset = request.position
        records = await self._log.read(partition, offset, max_records=1)
        event = request_in(records[0]) if records and records[0].offset == offset else None
        if event is None:  # it was there when it was folded
            raise UnreachableError("the record is not there", where=str(request.position), fix="run rftd verify")
        with self._span(request, event):
            await self._answer_event(request, event, patient=patient)

    def _span(self, request: OpenRequest, event: CloudEvent) -> AbstractContextManager[object]:
        """The span of an answer: in the producer's trace, if the request names one, and then by his choice."""
        if self._tracer is None:
            return nullcontext()
        partition = request.position.partition
        about = names.messaging("process", partition.stream, partition.number)
        caller = parsed(event.shown("traceparent"))
        name = f"process {partition.stream}"
        span = self._tracer.begin(name, SpanKind.CONSUMER, parent=caller, always=caller is None, attributes=about)
        return nullcontext() if span is None else span

    async def _answer_event(self, request: OpenRequest, event: CloudEvent, *, patient: bool) -> None:
        try:
            receipt = await self._carry_out(event)
        except TimeoutError:
            # The command was given up, and nobody will give it again: what it became all the same answers the request.
            end_if_cancelled()
            await self._refuse(request, event, _late())
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
            self._logger.info("request.accepted", **self._named(request, event), experiment=receipt)

    async def _carry_out(self, event: CloudEvent) -> str:
        """The id of the experiment that it was about. Raises what the command raises."""
        asked = await asyncio.to_thread(asked_by, event)
        assert event.key is not None
        with asked.body.lines():
            async with asyncio.timeout(asked.route.timeout_s):
                receipt = await asked.route.work(self, asked.body.value, event.key, **asked.parameters)
        return str(receipt.id)

    async def _refuse(self, request: OpenRequest, event: CloudEvent, error: Exception) -> None:
        if (span := current()) is not None:
            span.fail(error)
        known = next((leaf for leaf in leaves(error) if isinstance(leaf, RftdError)), None)
        if known is None:
            self._logger.error("request.bug", position=str(request.position), exc_info=error)
        code = known.code if known is not None else "RFTD-BUG"
        reason = _text(known) if known is not None else _BUG
        place = str(request.position)
        # An experiment of its own, that never was: the refusal of a pause must not end the experiment that it is about.
        nobody = derive(NAMESPACE, "refused request", place)
        named = {name: mask_text(event.shown(name))[:_SHOWN_CHARS] for name in ("type", "source", "id")}
        rejected = ExperimentRejected(code=code, reason=reason, request=RequestRef(place=place, **named))
        id = derive(nobody, "rejected")
        draft = self._writer.draft(rejected, experiment=nobody, id=id, correlation=request.key)
        await append_when_space(self._log, [draft], clock=self._clock)
        self._count(event, "refused")
        self._logger.warning("request.refused", **self._named(request, event), code=code, reason=reason)

    def _named(self, request: OpenRequest, event: CloudEvent) -> dict[str, str]:
        shown = {name: mask_text(event.shown(name))[:_SHOWN_CHARS] for name in ("type", "source", "id", "subject")}
        return {"position": str(request.position), **shown}

    def _count(self, event: CloudEvent, outcome: str) -> None:
        kind = event.shown("type")
        self._metrics.requests.labels(kind.removeprefix(TYPES) if kind in ROUTES else _OTHER, outcome).inc()


def _late() -> RftdError:
    return UsageError("the command took too long and was given up", fix="send it anew, with another id")


def _text(error: RftdError) -> str:
    """The error in one text: each thing that is wrong, and what to do."""
    # A record has no headers: the name of one would only hide the word after it, as a credential.
    found = [
        " ".join(filter(None, (part.where and f"{part.where}:", _field_of(part), part.what)))
        + (f"; fix: {part.fix}" if part.fix else "")
        for part in parts(error)
    ]
    return mask_text("\n".join(found))[:_REASON_CHARS]


def _field_of(part: RftdError) -> str:
    return f"{part.field}:" if part.field and part.field != _HEADER else ""
