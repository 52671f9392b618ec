"""Decoders of plain data, each made once and one at a time. All of rftd reads JSON and msgpack through them.

msgspec writes its knowledge of a class into the class when the first decoder of it is made, and for a moment only half
of it is there: another thread that reads data of this class then ends the process with a segmentation fault (0.22).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from threading import RLock
from typing import Any, Final, TypeVar, cast

import msgspec
import msgspec.inspect

T = TypeVar("T")
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a decoder raises for bytes that are no value of its kind, the last for what is nested deeper than the stack."""
_making: Final = RLock()


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of JSON text as `kind`. Its `decode` raises UNREADABLE."""
    return cast("msgspec.json.Decoder[T]", _made(msgspec.json.Decoder, cast(Hashable, kind)))


def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """The decoder of msgpack bytes as `kind`. Its `decode` raises UNREADABLE."""
    return cast("msgspec.msgpack.Decoder[T]", _made(msgspec.msgpack.Decoder, cast(Hashable, kind)))


def converted(value: object, kind: type[T], *, strict: bool = True) -> T:
    """Plain lists, dicts and scalars as `kind`. Raises msgspec.ValidationError."""
    json_decoder(kind)  # `convert` would write into the class too, outside of the lock
    return msgspec.convert(value, kind, strict=strict)


def type_info_of(kind: type[object]) -> msgspec.inspect.Type:
    """The fields of `kind` and their types."""
    return cast("msgspec.inspect.Type", _made(msgspec.inspect.type_info, cast(Hashable, kind)))


# `cache` lets two threads that come first both call this, one after the other behind the lock: the second finds the
# class complete, and its decoder takes the first one's place.
@cache
def _made(make: Callable[[Any], Any], kind: Hashable) -> Any:
    with _making:  # reentrant: a class may ask for a decoder of its own while it is looked at
        return make(kind)
