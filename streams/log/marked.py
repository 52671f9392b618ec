"""Marks in field annotations, by which all fields of one kind are found in any struct.

    path: Annotated[str, Meta(extra={"mark": StoredPath(...)})]

A list of fields elsewhere would lack the newest field; a mark is written next to the field. Two kinds of marks:
`LogPlace` for positions in the log, `StoredPath` for paths.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, inspect

from rftd.streams.log import topics
from rftd.streams.log.bounds import Offset

S = TypeVar("S", bound=msgspec.Struct)
Change = Callable[[Any, Any, Any], Any]
"""A function computing a field's new value from its mark, its old value and the struct holding it."""
_Step = Callable[[Any, Any, Change], Any]
"""Computes a changed value from a value, the struct holding it, and the change."""


class FieldMark:
    """Base of marks; each subclass is a family that is searched separately."""


def marked(mark: FieldMark) -> Meta:
    """Returns the annotation carrying `mark`; it does not restrict valid values, and no schema shows it."""
    return Meta(extra={"mark": mark})


def mark_of(kind: inspect.Type) -> FieldMark | None:
    """Returns the mark of a field from its inspected type; None for a field without a mark."""
    mark = (kind.extra or {}).get("mark") if isinstance(kind, inspect.Metadata) else None
    return mark if isinstance(mark, FieldMark) else None


def changed(value: S, family: Any, change: Change) -> S:
    """Returns `value` with `change` applied to every field marked by a family, at any depth; the same object without
    any.

    Structs below a marked field are left to the field's mark.
    """
    step = _struct_step(type(value), family)
    if step is None:
        return value
    replacement: S = step(value, None, change)
    return replacement


def carries(kind: type[msgspec.Struct], family: Any) -> bool:
    """True if a struct type has a field with a mark of this family, at any depth."""
    return _struct_step(kind, family) is not None


# Cached by type: inspecting the fields costs more than all changes of an event, and an import inspects every record.
@cache
def _struct_step(kind: Any, family: Any) -> _Step | None:
    """Returns a function that changes the marked fields of a struct, at any depth; None if the type has none."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType), kind
    steps = [(field.name, step) for field in info.fields if (step := _step(field.type, family)) is not None]
    if not steps:
        return None

    def replaced(value: Any, _holder: Any, change: Change) -> Any:
        fields = {name: step(getattr(value, name), value, change) for name, step in steps}
        return msgspec.structs.replace(value, **fields)

    return replaced


def _step(kind: inspect.Type, family: Any) -> _Step | None:
    """Returns a function that changes the marked values within a value of this type; None if it has none."""
    match kind:
        case inspect.Metadata():
            mark = mark_of(kind)
            if isinstance(mark, family):
                return lambda value, holder, change: change(mark, value, holder)
            return _step(kind.type, family)
        case inspect.StructType():
            return _struct_step(kind.cls, family)
        case inspect.UnionType():
            # One alternative at most: at run time nothing tells which of two structs of a union a value was declared
            # as.
            steps = [step for alternative in kind.types if (step := _step(alternative, family)) is not None]
            assert len(steps) <= 1, kind
            return _unless_none(steps[0]) if steps else None
        case inspect.VarTupleType():
            element_step = _step(kind.item_type, family)
            return None if element_step is None else _for_elements(element_step)
        case _:
            return None


def _unless_none(step: _Step) -> _Step:
    """Applies a step to any value but None."""
    return lambda value, holder, change: None if value is None else step(value, holder, change)


def _for_elements(step: _Step) -> _Step:
    """Applies a step to each element of a tuple."""
    return lambda values, holder, change: tuple(step(value, holder, change) for value in values)


class PlaceKind(Enum):
    """What a position in an event refers to."""

    RECORD = "record"
    """Offset of an earlier record of the experiment."""
    POINTER = "pointer"
    """Offset of a record that may be missing, or another experiment's."""
    READ = "read"
    """Offset up to which the writer had read a partition."""
    HEADS = "heads"
    """Heads remembered by the writer."""
    START = "start"
    """Heads below which the experiment has no record."""
    DIGEST = "digest"
    """A digest over records with changing positions, meaningless in another log."""
    HISTORY = "history"
    """Describes the log at the time of writing, and is never looked up again."""


class LogPlace(FieldMark):
    """Marks a field as a position in the log; the stream is set here, or in the struct's field `stream`."""

    def __init__(self, kind: PlaceKind, stream: str = "") -> None:
        self.kind: Final = kind
        self.stream: Final = stream


class RememberedHeads(LogPlace):
    """Marks a field as heads that later readers compare with the log (`rftd.streams.log.lost_records`)."""

    def __init__(self) -> None:
        super().__init__(PlaceKind.HEADS)


# A new position in an event needs one of these annotations, or an import leaves the number of another log in it: a test
# of every registered type looks for offsets without a mark.
TaskOffset: TypeAlias = Annotated[Offset, marked(LogPlace(PlaceKind.RECORD, topics.TASKS))]
"""Offset of a record of `rftd.tasks`."""
ExperienceOffset: TypeAlias = Annotated[Offset, marked(LogPlace(PlaceKind.RECORD, topics.EXPERIENCES))]
"""Offset of a record of `rftd.experiences`."""
PointerOffset: TypeAlias = Annotated[Offset, marked(LogPlace(PlaceKind.POINTER))]
"""Offset of a record that may be missing, or another experiment's (`PlaceKind.POINTER`)."""
ReadOffset: TypeAlias = Annotated[Offset, marked(LogPlace(PlaceKind.READ))]
"""Offset up to which the writer had read a partition (`PlaceKind.READ`)."""
HEADS: Final = marked(RememberedHeads())
"""Marks heads remembered by the event's writer."""
START: Final = marked(LogPlace(PlaceKind.START))
"""Marks heads of kind `PlaceKind.START`."""
DIGEST: Final = marked(LogPlace(PlaceKind.DIGEST))
"""Marks a digest over records with changing positions (`PlaceKind.DIGEST`)."""
HISTORY: Final = marked(LogPlace(PlaceKind.HISTORY))
"""Marks a description of the log at the time of writing (`PlaceKind.HISTORY`)."""


class PathUse(Enum):
    """What a path in an event or specification is to its experiment."""

    INPUT = "input"
    """Read by the experiment and contained in no export: a model, an adapter, a dataset."""
    OWN = "own"
    """Written by the experiment, and created if missing."""
    RELATIVE = "relative"
    """Relative to a folder in another field, and moved together with it."""


class StoredPath(FieldMark):
    """Marks a field as a path; in a mapping, the values of the keys in `arguments` are paths."""

    def __init__(self, use: PathUse, *, arguments: tuple[str, ...] = ()) -> None:
        self.use = use
        self.arguments = arguments

    def moved(self, value: Any, move: Callable[[str], str]) -> Any:
        """Returns the field's value with `move` applied to each path in it; a relative path stays as it is."""
        if self.use is PathUse.RELATIVE:
            return value
        if not self.arguments:
            return move(value)
        paths = {name: value[name] for name in self.arguments if isinstance(value.get(name), str)}
        return {**value, **{name: move(path) for name, path in paths.items()}}


InputPath: TypeAlias = Annotated[str, marked(StoredPath(PathUse.INPUT))]
"""Path of a file read by the experiment and contained in no export (`PathUse.INPUT`)."""
OwnPath: TypeAlias = Annotated[str, marked(StoredPath(PathUse.OWN))]
"""Path written by the experiment, and created if missing (`PathUse.OWN`)."""
RelativePath: TypeAlias = Annotated[str, marked(StoredPath(PathUse.RELATIVE))]
"""Path relative to a folder in another field (`PathUse.RELATIVE`)."""
InputArguments: TypeAlias = Annotated[dict[str, Any], marked(StoredPath(PathUse.INPUT, arguments=("path",)))]
"""Arguments of a plug-in, in which the key `path` is an input path."""


def moved(value: S, move: Callable[[str], str]) -> S:
    """Returns an event or a specification with `move` applied to each path; the same object if it has none."""
    return changed(value, StoredPath, lambda mark, field, _: mark.moved(field, move))


def inputs_of(spec: msgspec.Struct) -> set[str]:
    """Returns the models, adapters and datasets read by a specification, as absolute paths; no export carries them."""
    paths = set[str]()

    def collect(path: str) -> str:
        paths.add(path)
        return path

    # A walk without changes: `changed` knows the positions of the paths.
    changed(spec, StoredPath, lambda mark, field, _: mark.moved(field, collect) if mark.use is PathUse.INPUT else field)
    return {path for path in paths if path.startswith("/")}
