"""Requests of other programs that were refused, with the reason: records in the log, not requests to the API."""

from __future__ import annotations

import msgspec

from rftd.daemon.http.views.route import Daemon, Limit, read


class RefusedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as its refusal names it."""

    place: str
    """The record, as `stream/partition@offset`."""
    type: str
    source: str
    id: str
    code: str
    reason: str
    refused_ns: int


class RefusedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """The newest of them, newest first."""

    items: list[RefusedRequest]


@read("/v1/requests/refused", RefusedRequests, tag="requests")
async def refused(daemon: Daemon, limit: Limit = 50) -> RefusedRequests:
    """Requests by records that were refused, newest first: 1,000 of them at most are remembered."""
    from rftd.streams.events.experiment import ExperimentRejected
    from rftd.streams.log.codec import decode_as, decode_head  # late: the command line imports this, and no log

    items: list[RefusedRequest] = []
    for partition, offset in (await daemon.operations.refusals())[-limit:]:
        records = await daemon.log.read(partition, offset, max_records=1)
        if not records or records[0].offset != offset:
            continue  # it was removed with what an experiment left
        event = decode_as(records[0], ExperimentRejected)
        if event.request is None:
            continue
        request = event.request
        items.append(
            RefusedRequest(
                place=request.place,
                type=request.type,
                source=request.source,
                id=request.id,
                code=event.code,
                reason=event.reason,
                refused_ns=decode_head(records[0]).time_ns,
            )
        )
    return RefusedRequests(items=sorted(items, key=lambda each: each.refused_ns, reverse=True))
