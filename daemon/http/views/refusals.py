"""Refused requests of other programs, with the reason: records in the log, not requests to the API."""

from __future__ import annotations

import msgspec

from rftd.daemon.http.views.route import Daemon, Limit, read


class RefusedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as named in its refusal, with the code and the reason."""

    place: str
    """Position of the record: `stream/partition@offset`."""
    type: str
    """Type of the request, as its record says."""
    source: str
    """Source of the request, as its record says."""
    id: str
    """Id of the request, given by its source."""
    code: str
    """Error code of the refusal."""
    reason: str
    """Reason of the refusal, in words."""
    refused_ns: int
    """Time of the refusal, in nanoseconds since 1970."""


class RefusedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """The newest refused requests of other programs, newest first."""

    items: list[RefusedRequest]
    """The refused requests, newest first."""


@read("/v1/requests/refused", RefusedRequests, tag="requests")
async def refused(daemon: Daemon, limit: Limit = 50) -> RefusedRequests:
    """Refused requests sent as records, newest first, out of the last 1,000."""
    from rftd.streams.events.experiment import ExperimentRejected
    from rftd.streams.log.codec import decode_as, decode_head  # late: the command line imports this module, and no log

    refused_requests: list[RefusedRequest] = []
    for partition, offset in (await daemon.operations.refusals())[-limit:]:
        records = await daemon.log.read(partition, offset, max_records=1)
        if not records or records[0].offset != offset:
            continue  # removed together with the leftovers of an experiment
        event = decode_as(records[0], ExperimentRejected)
        if event.request is None:
            continue
        request = event.request
        refused_requests.append(
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
    return RefusedRequests(
        items=sorted(refused_requests, key=lambda request_view: request_view.refused_ns, reverse=True)
    )
