"""Facts beside the fields: each field of a registered type, and of a specification, that needs a mark has one."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from msgspec import inspect

from rftd.streams.events.catalogue import definitions
from rftd.streams.events.experiment import HeadRef
from rftd.streams.events.registry import Definition
from rftd.streams.log.bounds import Offset
from rftd.streams.log.marked import FieldMark, LogPlace, ReadOffset, StoredPath, mark_of

EVERY_TYPE = pytest.mark.parametrize("definition", definitions(), ids=lambda definition: definition.name)
Leaf = tuple[str, inspect.Type, tuple[FieldMark, ...]]
OFFSET = inspect.type_info(Offset)
_PATHS = ("path", "folder", "dir", "checkpoint")


class Part(msgspec.Struct):
    """It has a path that no annotation calls one."""

    draft_path: str = ""


class Whole(msgspec.Struct):
    """It holds parts."""

    parts: tuple[Part, ...] = ()
    other: Part | None = None


class Looked(msgspec.Struct):
    """It has offsets that no annotation calls a place, and one that is called one."""

    seen: Offset
    heads: tuple[HeadRef, ...]
    read: ReadOffset


def leaves(kind: inspect.Type, name: str, marks: tuple[FieldMark, ...] = ()) -> Iterator[Leaf]:
    """Each field that is no struct: its name, its type, and the marks on it and above it."""
    match kind:
        case inspect.Metadata():
            mark = mark_of(kind)
            yield from leaves(kind.type, name, (*marks, mark) if mark else marks)
        case inspect.StructType():
            for field in kind.fields:
                yield from leaves(field.type, f"{name}.{field.name}", marks)
        case inspect.UnionType() | inspect.TupleType():
            for each in kind.types if isinstance(kind, inspect.UnionType) else kind.item_types:
                yield from leaves(each, name, marks)
        case inspect.VarTupleType() | inspect.ListType():
            yield from leaves(kind.item_type, name, marks)
        case _:
            yield name, kind, marks


def is_path(name: str) -> bool:
    field = name.rpartition(".")[2]
    return field in _PATHS or field.endswith(tuple(f"_{each}" for each in _PATHS))


def unmarked_paths(kind: type[msgspec.Struct]) -> list[str]:
    """Fields of text that are called like a path, and that no annotation calls one."""
    return [
        name
        for name, leaf, marks in leaves(inspect.type_info(kind), kind.__name__)
        if isinstance(leaf, inspect.StrType) and is_path(name) and not any(isinstance(m, StoredPath) for m in marks)
    ]


def unmarked_places(kind: type[msgspec.Struct]) -> list[str]:
    """Fields of type `Offset` that no annotation calls a place, on them or above them."""
    return [
        name
        for name, leaf, marks in leaves(inspect.type_info(kind), kind.__name__)
        if leaf == OFFSET and not any(isinstance(m, LogPlace) for m in marks)
    ]


@EVERY_TYPE
def test_each_path_says_whose_it_is(definition: Definition) -> None:
    """Else an import with --map leaves it behind, and names nothing that is missing. A specification is in an event."""
    assert unmarked_paths(definition.kind) == []


@EVERY_TYPE
def test_each_place_in_the_log_says_what_it_is(definition: Definition) -> None:
    """Else an import leaves it as it was, and it names another record of another log."""
    assert unmarked_places(definition.kind) == []


def test_a_place_without_a_mark_is_found() -> None:
    assert unmarked_places(Looked) == ["Looked.seen", "Looked.heads.next_offset"]


def test_a_path_without_a_mark_is_found() -> None:
    assert unmarked_paths(Whole) == ["Whole.parts.draft_path", "Whole.other.draft_path"]
