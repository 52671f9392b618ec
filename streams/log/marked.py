"""A fact beside a field: the annotation carries a mark, by which readers find every field of one kind.

    path: Annotated[str, Meta(extra={"mark": StoredPath(...)})]

A list of fields kept elsewhere forgets the next field; a mark is written beside the field.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Meta, inspect

S = TypeVar("S", bound=msgspec.Struct)
Change = Callable[[Any, Any, Any], Any]
"""Computes a field's new value from its mark, its old value and the struct holding it."""
_Step = Callable[[Any, Any, Change], Any]
"""Computes a changed value from a value, the struct holding it, and the change."""


class FieldMark:
    """Base of marks in annotations; each subclass is a family with its own search."""


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
    return lambda value, holder, change: None if value is None else step(value, holder, change)


def _for_elements(step: _Step) -> _Step:
    return lambda values, holder, change: tuple(step(value, holder, change) for value in values)
