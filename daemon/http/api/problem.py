"""Every error of the API as RFC 9457 problem+json: message, position, field and fix, under a stable code."""

from __future__ import annotations

import http
import math
from collections.abc import Mapping

import msgspec
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from rftd.daemon.cli.output.failure import leaves, parts
from rftd.daemon.http.api.methods import methods_of
from rftd.daemon.http.views.problem import MEDIA_TYPE, Problem, ProblemPart
from rftd.daemon.trust.quota import QuotaError
from rftd.ops.errors import NotFoundError, RftdError, UnreachableError, UsageError
from rftd.ops.logs import logger


class RefusedError(UsageError):
    """The request carries no valid token: none, an unknown one, or one that has expired; which of them is not told."""

    code = "RFTD-API-001"
    remedy = (
        "On the daemon's machine run `rftd` as its user, which finds the owner's token by itself. Elsewhere set "
        "`RFTD_TOKEN` to a token that `rftd token add NAME` printed, or send `Authorization: Bearer TOKEN`."
    )
    http_status = 401


class ForbiddenError(UsageError):
    """The request came through a foreign web page or a host name that the daemon does not serve."""

    code = "RFTD-API-002"
    remedy = (
        "Use the daemon's IP address, `localhost` or a name of `rftd serve --allow-host`, and not a page of another "
        "origin."
    )
    http_status = 403


class TooLargeError(UsageError):
    """The request's body is larger or more deeply nested than the daemon accepts."""

    code = "RFTD-API-003"
    remedy = "Name datasets by path instead of sending them."
    http_status = 413


class MethodError(UsageError):
    """The path exists, but not with this HTTP method."""

    code = "RFTD-API-004"
    remedy = "See `GET /openapi.json`."
    http_status = 405


class BusyError(RftdError):
    """The daemon cannot serve any more clients that follow experiments at the same time."""

    code = "RFTD-API-005"
    remedy = "Try again later, or follow fewer experiments at once."
    exit_status = 4
    http_status = 503


class MediaTypeError(UsageError):
    """The request's body has a media type that this path does not accept."""

    code = "RFTD-API-006"
    remedy = "Send `application/json`; an experiment file may be `application/yaml`."
    http_status = 415


class OtherFolderError(UsageError):
    """The request was meant for the daemon of another data folder, which had this address before."""

    code = "RFTD-API-007"
    remedy = "Start that folder's daemon with `rftd serve --data DIR`, or name this daemon's address with `--server`."
    exit_status = 4
    http_status = 421


def problem_of(error: RftdError) -> Problem:
    """Returns the RFC 9457 body describing `error`, with every part of a combined error."""
    several = parts(error)
    return Problem(
        type=f"urn:rftd:error:{error.code}",
        title=http.HTTPStatus(error.http_status).phrase,
        status=error.http_status,
        detail=error.what,
        code=error.code,
        field=error.field,
        where=error.where,
        fix=error.fix,
        errors=() if several == [error] else tuple(_problem_part(part_error) for part_error in several),
    )


def answer(error: RftdError, headers: Mapping[str, str] | None = None) -> Response:
    """Returns the response describing `error`, with additional `headers`; Retry-After if only time helps."""
    headers = dict(headers or {})
    if error.http_status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.http_status == 503:
        # Standard clients and proxies repeat requests on this header by themselves.
        headers["Retry-After"] = "1"
    if isinstance(error, QuotaError) and error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    body = msgspec.json.encode(problem_of(error))
    return Response(body, status_code=error.http_status, media_type=MEDIA_TYPE, headers=headers)


def refusal(status: int, reason: str) -> tuple[bytes, bytes]:
    """Returns the media type and body of an answer to bytes that never became a request."""
    problem = problem_of(UsageError(reason))
    return MEDIA_TYPE.encode(), msgspec.json.encode(
        msgspec.structs.replace(problem, status=status, title=http.HTTPStatus(status).phrase)
    )


async def on_error(request: Request, error: Exception) -> Response:
    """Answers any exception: rftd's errors by code, the framework's by status, others as a bug without details."""
    rftd_error = next((leaf for leaf in leaves(error) if isinstance(leaf, RftdError)), None)
    if rftd_error is not None:
        return answer(rftd_error)
    if isinstance(error, DBAPIError):
        # Only the first line: the others may contain the statement with its parameters.
        reason = str(error.orig).partition("\n")[0]
        return answer(UnreachableError(f"the state database does not answer: {reason}", fix="see /readyz?verbose"))
    if isinstance(error, PoolTimeoutError):
        reason = "all connections to the state database are in use"
        return answer(UnreachableError(reason, fix="ask again later, or fewer questions at once"))
    if isinstance(error, HTTPException):
        headers = {"Allow": ", ".join(methods_of(request.app, request.url.path))} if error.status_code == 405 else {}
        return answer(_of_status(error.status_code, request), headers)
    # The details stay in the log: a traceback in an answer would show paths and values to the client.
    logger().error("api.bug", method=request.method, path=request.url.path, error=repr(error), exc_info=error)
    bug = Problem(
        type="urn:rftd:error:RFTD-BUG",
        title="Internal Server Error",
        status=500,
        detail="this is a bug in rftd, not in the request",
        code="RFTD-BUG",
        fix="see the daemon's log",
    )
    return Response(msgspec.json.encode(bug), status_code=500, media_type=MEDIA_TYPE)


def _of_status(status: int, request: Request) -> RftdError:
    if status == 404:
        return NotFoundError(f"no resource {request.url.path}", fix="GET /openapi.json lists every path")
    if status == 405:
        return MethodError(f"{request.method} is not possible on {request.url.path}", fix="see GET /openapi.json")
    return UsageError(f"HTTP status {status}", field=request.url.path)


def _problem_part(error: RftdError) -> ProblemPart:
    return ProblemPart(
        code=error.code,
        what=error.what,
        field=error.field,
        where=error.where,
        fix=error.fix,
        excerpt=getattr(error, "excerpt", None),
    )
