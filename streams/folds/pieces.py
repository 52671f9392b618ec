"""A fold in pieces: none takes long to encode, however much is under way.

The first piece is the fold without its large containers, the others are parts of these: [path, entries]. Python's lock
is handed over between two of them, so whoever shares the process with the encoding thread hardly waits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any, Final, TypeVar, cast, get_type_hints

import msgspec

from rftd.ops.decoding import msgpack_decoder

ENTRIES: Final = 512
"""A container with more entries, counted with what they hold, is not part of the first piece."""
_MANY: Final = 8 * ENTRIES
"""The entries of a container with more of them are small, so they are not weighed."""

T = TypeVar("T", bound=msgspec.Struct)
_encoder: Final = msgspec.msgpack.Encoder(uuid_format="bytes")


class _Piece(msgspec.Struct, frozen=True, array_like=True):
    path: tuple[str, ...]
    entries: msgspec.Raw


_pieces: Final = msgpack_decoder(_Piece)


def pieces_of(fold: msgspec.Struct) -> Iterator[bytes]:
    """The fold's pieces, in order; it must not change meanwhile."""
    large: list[tuple[tuple[str, ...], Any]] = []
    yield _encoder.encode(_without_large(fold, (), large))
    for path, container in large:
        entries = iter(container.items() if isinstance(container, dict) else container)
        at_once = ENTRIES if len(container) > _MANY else max(1, ENTRIES * len(container) // _weight_of(container))
        while some := list(islice(entries, at_once)):
            yield _encoder.encode((path, dict(some) if isinstance(container, dict) else some))


def from_pieces(pieces: Iterable[bytes], kind: type[T]) -> T:
    """The fold again; containers that `kind` does not name are left out. Raises msgspec.MsgspecError."""
    each = iter(pieces)
    # A part that `kind` does not have belongs to a larger fold: trainers read the daemon's snapshots.
    fold: T = msgpack_decoder(kind).decode(next(each, b""))
    for piece in map(_pieces.decode, each):
        holder: Any = fold
        for name in piece.path[:-1]:
            holder = getattr(holder, name, None)
        name = piece.path[-1]
        if holder is None or name not in holder.__struct_fields__:
            continue
        entries = msgpack_decoder(_hints(cast(Hashable, type(holder)))[name]).decode(piece.entries)
        container = getattr(holder, name)
        if isinstance(container, list):
            container.extend(entries)
        else:
            container.update(entries)
    return fold


def _without_large(part: Any, path: tuple[str, ...], large: list[tuple[tuple[str, ...], Any]]) -> Any:
    changed: dict[str, Any] = {}
    for name in part.__struct_fields__:
        value = getattr(part, name)
        # A frozen struct is one value, as an event is, and encoded whole.
        if isinstance(value, msgspec.Struct) and not value.__struct_config__.frozen:
            if (smaller := _without_large(value, (*path, name), large)) is not value:
                changed[name] = smaller
        elif isinstance(value, dict | set | list) and (len(value) > ENTRIES or _weight_of(value) > ENTRIES):
            changed[name] = type(value)()
            large.append(((*path, name), value))
    return msgspec.structs.replace(part, **changed) if changed else part


def _weight_of(container: Any) -> int:
    """The number of a container's entries and of what they hold."""
    return sum(map(_weight, container.values() if isinstance(container, dict) else container))


def _weight(value: Any) -> int:
    if isinstance(value, msgspec.Struct):
        inner = (getattr(value, name) for name in value.__struct_fields__)
        return 1 + sum(len(each) for each in inner if isinstance(each, dict | list | set | tuple))
    if isinstance(value, tuple):
        return sum(map(_weight, value))
    return 1 + len(value) if isinstance(value, dict | list | set) else 1


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(cast(Any, kind))
