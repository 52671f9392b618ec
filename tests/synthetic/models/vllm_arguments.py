"""The arguments of the installed vLLM's AsyncEngineArgs, with the types that plain data of a file can have."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

_PLAIN = (bool, int, float, str, type(None))
_AS_WRITTEN = {"dict[str, Any] | QuantizationConfigArgs | None": dict[str, Any] | None}
"""Types that vLLM writes as texts, for their names are no names of that module."""


def installed_arguments() -> dict[str, Any]:
    """Type by name. A configuration object is a dict; a class or a function, which no file holds, is left out."""
    from vllm import AsyncEngineArgs

    found: dict[str, Any] = {}
    for field in dataclasses.fields(AsyncEngineArgs):
        if field.name.startswith("_"):
            continue
        hint = _AS_WRITTEN[field.type] if isinstance(field.type, str) else _plain(field.type)
        # Some say `int = None`.
        found[field.name] = hint | None if field.default is None else hint
    return found


def _plain(hint: Any) -> Any:
    members = list(_members(hint))
    # Names beside any other text are advice only.
    kept = [each for each in members if not (str in members and get_origin(each) is Literal)]
    found = kept[0]
    for each in kept[1:]:
        found = found | each
    return found


def _members(hint: Any) -> Iterator[Any]:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        for each in get_args(hint):
            yield from _members(each)
    elif hint in _PLAIN or origin is Literal:
        yield hint
    elif origin in (list, set):
        yield list[_plain(get_args(hint)[0])]  # type: ignore[misc]
    elif origin is dict:
        key, value = get_args(hint)
        yield dict[key, Any if value is Any else _plain(value)]  # type: ignore[valid-type]
    elif isinstance(hint, type) and issubclass(hint, enum.IntEnum):
        yield int
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        yield str
    elif hint is dict or (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
        yield dict[str, Any]
