"""Routes: livez, readyz, metrics, version."""

from __future__ import annotations

import platform
from collections import Counter
from typing import Any

from fastapi import APIRouter, Request, Response

from rftd.daemon.api.receipts import VersionView
from rftd.daemon.api.schema import answers
from rftd.daemon.api.services import Services
from rftd.daemon.api.wire import respond
from rftd.ops.health import Verdict
from rftd.ops.metrics import CONTENT_TYPE
from rftd.streams.topics import TRUTH

_VERDICT: dict[int | str, dict[str, Any]] = {
    **answers(Verdict, text="All is well: `ok`, or every check if `?verbose` is given."),
    503: {"description": "At least one check failed; the answer names it."},
}


def router(services: Services) -> APIRouter:
    """The routes that machines ask."""
    routes = APIRouter(tags=["probes"])

    @routes.get("/livez", responses=_VERDICT)
    async def livez(request: Request) -> Response:
        """Whether the process should go on as it is."""
        return verdict_response(await services.health.live(), request)

    @routes.get("/readyz", responses=_VERDICT)
    async def readyz(request: Request) -> Response:
        """Whether requests can be served."""
        return verdict_response(await services.health.ready(), request)

    @routes.get("/metrics", responses={200: {"description": "Prometheus text.", "content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Every metric."""
        services.feed.expire(services.clock.now_ns())
        produced, consumed = Counter[str](), Counter[str]()
        positions = services.applied.positions
        for partition, mark in (await services.log.heads()).items():
            produced[partition.stream] += mark.next_offset
            if partition in TRUTH:
                consumed[partition.stream] += positions.get(partition, 0)
        services.feed.metrics.streams.update(produced=produced, consumed=consumed)
        return Response(services.feed.metrics.expose(), media_type=CONTENT_TYPE)

    @routes.get("/version", responses=answers(VersionView))
    async def version() -> Response:
        """What runs here."""
        return respond(VersionView(version=services.version, python=platform.python_version()))

    return routes


def verdict_response(verdict: Verdict, request: Request) -> Response:
    """The answer that tells of a verdict: 200 or 503, in text, or as JSON if the request asks `?verbose`."""
    status = 200 if verdict.ok else 503
    verbose = request.query_params.get("verbose", "0") not in ("0", "false")
    if verbose:
        return respond(verdict, status=status)
    wrong = [f"{finding.name}: {finding.reason}" for finding in verdict.checks if not finding.ok]
    return Response("\n".join(wrong) or "ok", status_code=status, media_type="text/plain")
