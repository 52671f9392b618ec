"""A fold in pieces, each quick to encode, however much is under way.

The first piece is the fold without its large containers, the later ones are parts of these: [path, entries]. Python's
lock is handed over between two pieces, so other threads of the encoding process hardly wait.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any, Final, TypeVar, cast, get_type_hints

import msgspec

from rftd.ops.decoding import msgpack_decoder

ENTRIES: Final = 512
"""Containers with more entries, counted with their contents, are encoded in pieces of their own."""
_MANY: Final = 8 * ENTRIES
"""Containers with more entries than this have small ones, so each entry counts as 1."""

T = TypeVar("T", bound=msgspec.Struct)
"""Type of the fold."""
_encoder: Final = msgspec.msgpack.Encoder(uuid_format="bytes")
"""Encoder of pieces."""


class _Piece(msgspec.Struct, frozen=True, array_like=True):
    """A container of the fold, or the fold without its large containers."""

    path: tuple[str, ...]
    """Names of the fields leading to the container."""
    entries: msgspec.Raw
    """Entries of the container, encoded."""


_pieces: Final = msgpack_decoder(_Piece)
"""Decoder of pieces."""


def pieces_of(fold: msgspec.Struct) -> Iterator[bytes]:
    """Yields the fold's pieces, in order; the fold must not change meanwhile."""
    large: list[tuple[tuple[str, ...], Any]] = []
    yield _encoder.encode(_split_large(fold, (), large))
    for path, container in large:
        remaining = iter(container.items() if isinstance(container, dict) else container)
        at_once = ENTRIES if len(container) > _MANY else max(1, ENTRIES * len(container) // _weight_of(container))
        while chunk := list(islice(remaining, at_once)):
            yield _encoder.encode((path, dict(chunk) if isinstance(container, dict) else chunk))


def from_pieces(pieces: Iterable[bytes], kind: type[T]) -> T:
    """Rebuilds a fold from its pieces; containers that `kind` does not have are skipped. Raises
    msgspec.MsgspecError.
    """
    piece_iterator = iter(pieces)
    # A part unknown to `kind` belongs to a larger fold: trainers read the daemon's snapshots.
    fold: T = msgpack_decoder(kind).decode(next(piece_iterator, b""))
    for piece in map(_pieces.decode, piece_iterator):
        holder: Any = fold
        for name in piece.path[:-1]:
            holder = getattr(holder, name, None)
        name = piece.path[-1]
        if holder is None or name not in holder.__struct_fields__:
            continue
        contents = msgpack_decoder(_hints(cast(Hashable, type(holder)))[name]).decode(piece.entries)
        container = getattr(holder, name)
        if isinstance(container, list):
            container.extend(contents)
        else:
            container.update(contents)
    return fold


def _split_large(struct: Any, path: tuple[str, ...], large: list[tuple[tuple[str, ...], Any]]) -> Any:
    """Returns the struct with large containers emptied, and appends (path, container) of each to `large`."""
    changed: dict[str, Any] = {}
    for name in struct.__struct_fields__:
        field = getattr(struct, name)
        # A frozen struct, like an event, is one value, and encoded whole.
        if isinstance(field, msgspec.Struct) and not field.__struct_config__.frozen:
            if (smaller := _split_large(field, (*path, name), large)) is not field:
                changed[name] = smaller
        elif isinstance(field, dict | set | list) and (len(field) > ENTRIES or _weight_of(field) > ENTRIES):
            changed[name] = type(field)()
            large.append(((*path, name), field))
    return msgspec.structs.replace(struct, **changed) if changed else struct


def _weight_of(container: Any) -> int:
    """Counts a container's entries and their contents."""
    return sum(map(_weight, container.values() if isinstance(container, dict) else container))


def _weight(value: Any) -> int:
    """Returns the number of entries of a value, its inner containers counted with their lengths."""
    if isinstance(value, msgspec.Struct):
        inner = (getattr(value, name) for name in value.__struct_fields__)
        return 1 + sum(len(container) for container in inner if isinstance(container, dict | list | set | tuple))
    if isinstance(value, tuple):
        return sum(map(_weight, value))
    return 1 + len(value) if isinstance(value, dict | list | set) else 1


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    """Returns the types of a class's fields."""
    return get_type_hints(cast(Any, kind))
