"""Bodies of commands: JSON, or an experiment file as YAML where that is what is taken in; within limits, with lines."""

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

_JSON: Final = "application/json"
_DEPTH: Final = limits.CONFIG_DEPTH + 2
"""The most levels of a body: those of an experiment file, which is itself a field of it."""
_MISSING: Final = re.compile(r"missing required field `(\w+)`")
_TOO_MANY: Final = re.compile(r"`array` of length <= (\d+)")
_SHOWN: Final = "GET /openapi.json shows what the body must be"
_ORIGIN: Final = "body"
"""The name of a YAML body in `body:6:3`, as a file has one."""


@dataclass(frozen=True, slots=True)
class Body(Generic[B]):
    """The body of a request."""

    value: B
    source: SourceMap | None = None
    """The lines of a YAML body."""

    @contextmanager
    def lines(self) -> Iterator[None]:
        """Gives line and column to an error of what is done with a YAML body."""
        try:
            yield
        except RftdError as error:
            if self.source is not None:
                say_where(error, self.source)
            raise


async def read_body(request: Request, command: CommandRoute[B, Any]) -> Body[B]:
    """The request's body, as the command takes it. Raises UsageError, ConfigErrors, TooLargeError, MediaTypeError."""
    body = await request.body()
    media = request.headers.get("content-type", "")
    # On a thread: four megabytes of JSON would hold up the loop, and with it every append of the workers.
    return await asyncio.to_thread(body_of, body, media, command, field="Content-Type")


def body_of(body: bytes, content_type: str, command: CommandRoute[B, Any], *, field: str) -> Body[B]:
    """The body that bytes of this media type are, as the command takes it; `field` holds the type. Raises as above."""
    if not body and command.optional:
        return Body(command.body())
    media = content_type.partition(";")[0].strip().lower()
    taken = [_JSON] if command.of_file is None else [_JSON, YAML]
    if media not in (*taken, ""):
        raise MediaTypeError(f"a body of type {media[:200]!r}", field=field, fix=f"send {' or '.join(taken)}")
    if media == YAML:
        return _of_file(body, command)
    return Body(_decode(body, command.body))


def _of_file(body: bytes, command: CommandRoute[B, Any]) -> Body[B]:
    """An experiment file as it is, read as the client would read it, but for what only the client knows."""
    assert command.of_file is not None
    if len(body) > limits.CONFIG_SIZE_BYTES:
        what = f"an experiment file of {len(body)} bytes is over the limit of {limits.CONFIG_SIZE_BYTES}"
        raise TooLargeError(what, fix="an experiment file names datasets by path; it does not hold them")
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
        what = "the file is empty" if tree is None else "the file must be a mapping of sections"
        issues = [*issues, Issue((), what, _SHOWN, SyntaxIssue)]
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
        what, _, path = str(error).partition(" - at `$")
        missing = _MISSING.search(what)
        field = path.rstrip("`").lstrip(".") or (missing[1] if missing else "body")
        raise UsageError(what, field=field, fix=_fix(what)) from None


def _fix(what: str) -> str:
    """The way out of an error of the decoder."""
    most = _TOO_MANY.search(what)
    return f"send {most[1]} at most in one request, and the others in further ones" if most else _SHOWN


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
