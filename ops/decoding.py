"""Decoders of plain data, each created once and under a lock. All of rftd reads JSON and msgpack through this module.

msgspec stores type information in a class on creation of the first decoder, and the class is incomplete for a moment:
decoding in another thread then crashes the process with a segmentation fault (0.22).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache, lru_cache
from threading import RLock
from typing import Any, Final, TypeVar, cast

import msgspec
import msgspec.inspect

T = TypeVar("T")
"""Type of the decoded data."""
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions of a decoder for bytes that are no value of its type; RecursionError for data nested deeper than the
stack.
"""
_making: Final = RLock()
"""Lock held while a decoder is created."""


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Returns the decoder of JSON text as `kind`. Its `decode` raises UNREADABLE."""
    return cast("msgspec.json.Decoder[T]", _made(msgspec.json.Decoder, cast(Hashable, kind)))


def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """Returns the decoder of msgpack bytes as `kind`. Its `decode` raises UNREADABLE."""
    return cast("msgspec.msgpack.Decoder[T]", _made(msgspec.msgpack.Decoder, cast(Hashable, kind)))


def converted(plain: object, kind: type[T], *, strict: bool = True) -> T:
    """Converts plain lists, dicts and scalars to `kind`; with `strict`, no text becomes a number. Raises
    msgspec.ValidationError.
    """
    json_decoder(kind)  # `convert` would write into the class too, outside of the lock
    return msgspec.convert(plain, kind, strict=strict)


def type_info_of(kind: type[object]) -> msgspec.inspect.Type:
    """Returns the fields of `kind` and their types, as msgspec describes them; built once per type."""
    return cast("msgspec.inspect.Type", _made(msgspec.inspect.type_info, cast(Hashable, kind)))


# `cache` lets two simultaneous first callers both run the function, one after the other behind the lock: the second
# finds the class complete, and the second decoder replaces the first.
@cache
def _made(make: Callable[[Any], Any], kind: Hashable) -> Any:
    """Creates `make(kind)` under the lock against half-built classes, and caches the decoder or description."""
    with _making:  # reentrant: a class may request a decoder of its own while it is inspected
        return make(kind)


@lru_cache(maxsize=64)  # bounded: names come from requests
def numbers_decoder(names: tuple[str, ...], absent: float) -> msgspec.json.Decoder[list[Any]]:
    """Returns the decoder of a list of JSON objects as structs with the fields `f0`, `f1`, ... for the named numbers.

    Other fields are skipped without building objects: four times as fast as dicts. A missing number is `absent`.
    """
    fields = [(f"f{number}", float | None, absent) for number in range(len(names))]
    renamed = dict(zip((field for field, *_ in fields), names, strict=True))
    with _making:
        kind = msgspec.defstruct("Numbers", fields, rename=renamed, gc=False)
        return msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
