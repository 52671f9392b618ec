"""Bodies of commands: JSON, or an experiment file as YAML for commands accepting one; within limits, with lines."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec
from fastapi import Request

from rftd.daemon.config.issue import ConfigErrors, Issue, LimitIssue, SyntaxIssue, report, say_where
from rftd.daemon.config.source import SourceMap
from rftd.daemon.config.yaml_source import parse_yaml
from rftd.daemon.http.api.problem import MediaTypeError, TooLargeError
from rftd.daemon.http.views.route import YAML, CommandRoute
from rftd.ops import limits
from rftd.ops.decoding import converted
from rftd.ops.errors import RftdError, UsageError

B = TypeVar("B", bound=msgspec.Struct)
"""Type of the body."""

_JSON: Final = "application/json"
"""Media type of JSON."""
_DEPTH: Final = limits.CONFIG_DEPTH + 2
"""Maximum nesting of a body: the depth of an experiment file, as a field of the body."""
_MISSING_FIELD: Final = re.compile(r"missing required field `(\w+)`")
"""Message of msgspec about a missing field; group 1 is its name."""
_TOO_MANY: Final = re.compile(r"`array` of length <= (\d+)")
"""Message of msgspec about too many elements; group 1 is the maximum."""
_BODY_FIX: Final = "GET /openapi.json shows what the body must be"
"""Fix for a body of the wrong form."""
_ORIGIN: Final = "body"
"""Name of a YAML body in positions such as `body:6:3`, like a file's name."""


@dataclass(frozen=True, slots=True)
class Body(Generic[B]):
    """The decoded body of a request, with the line numbers of a YAML file for errors."""

    value: B
    """The body of the request, decoded as the command's struct."""
    source: SourceMap | None = None
    """Line numbers of a YAML body."""

    @contextmanager
    def lines(self) -> Iterator[None]:
        """Adds line and column to errors of processing a YAML body."""
        try:
            yield
        except RftdError as error:
            if self.source is not None:
                say_where(error, self.source)
            raise


async def read_body(request: Request, command: CommandRoute[B, Any]) -> Body[B]:
    """Reads the request's body for the command. Raises UsageError, ConfigErrors, TooLargeError, MediaTypeError."""
    body = await request.body()
    media = request.headers.get("content-type", "")
    # In a thread: four megabytes of JSON would hold up the loop, and with it every append of the workers.
    return await asyncio.to_thread(body_of, body, media, command, field="Content-Type")


def body_of(body: bytes, content_type: str, command: CommandRoute[B, Any], *, field: str) -> Body[B]:
    """Decodes a body of this media type for the command; `field` names the type's field. Raises as `read_body`."""
    if not body and command.optional:
        return Body(command.body())
    media = content_type.partition(";")[0].strip().lower()
    accepted = [_JSON] if command.of_file is None else [_JSON, YAML]
    if media not in (*accepted, ""):
        raise MediaTypeError(f"a body of type {media[:200]!r}", field=field, fix=f"send {' or '.join(accepted)}")
    if media == YAML:
        return _of_file(body, command)
    return Body(_decode(body, command.body))


def _of_file(body: bytes, command: CommandRoute[B, Any]) -> Body[B]:
    """Decodes an experiment file as sent, with the client's reading except its client-side resolution."""
    assert command.of_file is not None
    if len(body) > limits.CONFIG_SIZE_BYTES:
        problem = f"an experiment file of {len(body)} bytes is over the limit of {limits.CONFIG_SIZE_BYTES}"
        raise TooLargeError(problem, fix="an experiment file names datasets by path; it does not hold them")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8 text: byte {error.start}", field=_ORIGIN, fix="send it as UTF-8") from None
    try:
        tree, source, issues = parse_yaml(text, _ORIGIN)
    except ConfigErrors as errors:
        large = next((error for error in errors.errors if isinstance(error, LimitIssue)), None)
        if large is None:
            raise
        raise TooLargeError(large.what, where=large.where, field=large.field, fix=large.fix) from None
    if not isinstance(tree, dict):
        problem = "the file is empty" if tree is None else "the file must be a mapping of sections"
        issues = [*issues, Issue((), problem, _BODY_FIX, SyntaxIssue)]
    if issues:
        raise report(issues, source)
    return Body(command.of_file(tree), source)


def _decode(body: bytes, kind: type[B]) -> B:
    try:
        decoded = msgspec.json.decode(body)
        _check_depth(decoded)
        return converted(decoded, kind)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        problem, _, path = str(error).partition(" - at `$")
        missing = _MISSING_FIELD.search(problem)
        field = path.rstrip("`").lstrip(".") or (missing[1] if missing else "body")
        raise UsageError(problem, field=field, fix=_fix(problem)) from None


def _fix(problem: str) -> str:
    """Returns the fix for an error of the decoder."""
    most = _TOO_MANY.search(problem)
    return f"send {most[1]} at most in one request, and the others in further ones" if most else _BODY_FIX


def _check_depth(body: Any) -> None:
    # Level by level and not by recursion: the depth is chosen by the client.
    layer = _containers([body])
    for _ in range(_DEPTH):
        layer = [inner for outer in layer for inner in _containers(outer)]
    if layer:
        raise _too_deep()


def _containers(outer: dict[str, Any] | list[Any]) -> list[Any]:
    """Returns the objects and lists directly inside a container."""
    children = outer.values() if isinstance(outer, dict) else outer
    return [child for child in children if isinstance(child, dict | list)]


def _too_deep() -> TooLargeError:
    return TooLargeError(f"JSON nested deeper than {_DEPTH} levels", fix="experiment files are flat")
