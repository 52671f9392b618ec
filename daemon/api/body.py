"""JSON of a request, within limits: never deeper than an experiment file may be."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request

from rftd.daemon.api.problem import TooLargeError
from rftd.ops import limits
from rftd.ops.decoding import converted
from rftd.ops.errors import UsageError

T = TypeVar("T")

_DEPTH: Final = limits.CONFIG_DEPTH + 2
"""The most levels of a body: those of an experiment file, which is itself a field of it."""
_MISSING: Final = re.compile(r"missing required field `(\w+)`")


async def read_body(request: Request, kind: type[T], *, default: T | None = None) -> T:
    """The request's body as `kind`. Raises UsageError, TooLargeError."""
    body = await request.body()
    if not body and default is not None:
        return default
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in ("application/json", ""):
        raise UsageError(f"a body of type {media!r}", field="Content-Type", fix="send application/json")
    # On a thread: four megabytes of JSON would hold up the loop, and with it every append of the workers.
    return await asyncio.to_thread(_decode, body, kind)


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        decoded = msgspec.json.decode(body)
        _check_depth(decoded)
        return converted(decoded, kind)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        what, _, path = str(error).partition(" - at `$")
        missing = _MISSING.search(what)
        field = path.rstrip("`").lstrip(".") or (missing[1] if missing else "body")
        raise UsageError(what, field=field, fix="GET /openapi.json shows what the body must be") from None


def _check_depth(value: Any) -> None:
    # Level by level and not by recursion: the depth is what a stranger chose.
    layer = _containers([value])
    for _ in range(_DEPTH):
        layer = [inner for outer in layer for inner in _containers(outer)]
    if layer:
        raise _too_deep()


def _containers(outer: dict[str, Any] | list[Any]) -> list[Any]:
    """The objects and lists directly within one."""
    values = outer.values() if isinstance(outer, dict) else outer
    return [value for value in values if isinstance(value, dict | list)]


def _too_deep() -> TooLargeError:
    return TooLargeError(f"JSON nested deeper than {_DEPTH} levels", fix="experiment files are flat")
