"""Routes: livez, readyz, metrics, version."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from rftd.daemon.api.routes import respond
from rftd.daemon.api.schema import answers
from rftd.daemon.api.services import Services
from rftd.ops.health import Verdict
from rftd.ops.metrics import CONTENT_TYPE
from rftd.streams.backends.sqlite.wal import HasWal
from rftd.streams.topics import TRUTH

_TEXT: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
_VERDICT: dict[int | str, dict[str, Any]] = answers(
    Verdict, text="All is well: `ok`, or every check if `?verbose` is given.", besides=_TEXT
)
_VERDICT[503] = {**_VERDICT[200], "description": "At least one check failed; the answer names it."}

Verbose = Annotated[str | None, Query(max_length=10, description="Every check as JSON, unless it is `0` or `false`.")]


def router(services: Services) -> APIRouter:
    """The routes that machines ask."""
    routes = APIRouter(tags=["probes"])

    @routes.get("/livez", responses=_VERDICT)
    async def livez(request: Request, verbose: Verbose = None) -> Response:
        """Whether the process should go on as it is."""
        return verdict_response(await services.health.live(), request)

    @routes.get("/readyz", responses=_VERDICT)
    async def readyz(request: Request, verbose: Verbose = None) -> Response:
        """Whether requests can be served."""
        return verdict_response(await services.health.ready(), request)

    @routes.get("/metrics", responses={200: {"description": "Prometheus text.", "content": _TEXT}})
    async def metrics() -> Response:
        """Every metric."""
        services.feed.expire(services.clock.now_ns())
        produced = Counter[str]()
        consumed = Counter[str]()
        positions = services.applied.positions
        for partition, mark in (await services.log.heads()).items():
            produced[partition.stream] += mark.next_offset
            if partition in TRUTH:
                consumed[partition.stream] += positions.get(partition, 0)
        services.feed.metrics.streams.update(produced=produced, consumed=consumed)
        if isinstance(services.log, HasWal):
            blocked = services.log.blocked
            services.feed.metrics.wal_size.set(services.log.wal_size_bytes)
            services.feed.metrics.wal_blocked_by.set(blocked.holders[0].pid if blocked and blocked.holders else 0)
            services.feed.metrics.wal_blocked.set(blocked is not None)
        return Response(services.feed.metrics.expose(), media_type=CONTENT_TYPE)

    return routes


def verdict_response(verdict: Verdict, request: Request) -> Response:
    """The answer that tells of a verdict: 200 or 503, in text, or as JSON if the request asks `?verbose`."""
    status = 200 if verdict.ok else 503
    verbose = request.query_params.get("verbose", "0") not in ("0", "false")
    if verbose:
        return respond(verdict, status=status)
    told = [f"{finding.name}: {finding.reason}" for finding in verdict.checks if finding.reason]
    return Response("\n".join(["ok"] * verdict.ok + told), status_code=status, media_type="text/plain")
