"""JSON of a request, within limits: never deeper than an experiment file may be."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request

from rftd.daemon.api.parameters import MOST, NAME_CHARACTERS
from rftd.daemon.api.problem import TooLargeError
from rftd.ops import limits
from rftd.ops.decoding import converted
from rftd.ops.errors import UsageError

T = TypeVar("T")

_DEPTH: Final = limits.CONFIG_DEPTH + 2
"""Levels of a body: those of an experiment file, which is itself a field of it."""
MOST_PRIORITY: Final = 1_000_000
"""The largest priority of an experiment, either way, as in an experiment file."""
MOST_TAG: Final = 1e15
"""The largest priority of an experience, either way."""
MOST_CHARACTERS: Final = 1000
_PATH_CHARACTERS: Final = 4096
_MISSING: Final = re.compile(r"missing required field `(\w+)`")

Text = Annotated[str, Meta(max_length=MOST_CHARACTERS)]
Said = Annotated[str, Meta(min_length=1, max_length=MOST_CHARACTERS, pattern=r"\S")]
"""A text that is not blank."""
PathText = Annotated[str, Meta(max_length=_PATH_CHARACTERS)]


class Submit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/experiments."""

    config: dict[str, Any]
    """The experiment file, normalised by the client: no `${...}`, absolute paths, no secret as a value."""
    labels: dict[str, str] = {}


class Fork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/experiments/{name}/fork."""

    at_step: Annotated[int, Meta(ge=0, le=MOST)]
    """The weight version from which the fork goes on; 0 is the base model."""
    set: list[str] = []
    """`key=value` overrides of the parent's configuration, the value as YAML; paths absolute, no `${...}`."""
    name: Annotated[str, Meta(max_length=NAME_CHARACTERS)] | None = None
    """The fork's name; PARENT-fork-STEP if it is left out."""
    labels: dict[str, str] = {}
    """Labels that are added to the parent's."""


class Reason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of pause, resume and cancel; it may be missing."""

    reason: Text = ""


class Prioritize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of prioritize."""

    priority: Annotated[int, Meta(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]
    reason: Text = ""


class Tag(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of an experience's prioritize."""

    priority: Annotated[float, Meta(ge=-MOST_TAG, le=MOST_TAG)]
    reason: Text = ""


class To(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of archive; it may be missing."""

    to: PathText = ""
    """A new file on the daemon's machine; else one below its data folder."""


class From(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of restore; it may be missing."""

    source: PathText = ""
    """Where the archive lies now, if it was moved."""


class Remove(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of remove; it may be missing."""

    reason: Text = ""
    archive: bool = False
    """True: it is archived before it is removed."""


class Decide(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/dead-letters/retry."""

    id: Said
    """The dead letter's id, as GET /v1/dead-letters/one takes it."""
    reason: Text = ""
    by: Text = ""
    """Who decided; kept with the event."""


class Drop(Decide, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/dead-letters/drop."""

    id: Said
    """The dead letter's id, as GET /v1/dead-letters/one takes it."""
    reason: Said
    """Why it needs no more attention."""


async def read(request: Request, kind: type[T], *, default: T | None = None) -> T:
    """The request's body as `kind`. Raises UsageError, TooLargeError."""
    body = await request.body()
    if not body and default is not None:
        return default
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in ("application/json", ""):
        raise UsageError(f"a body of type {media!r}", field="Content-Type", fix="send application/json")
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
