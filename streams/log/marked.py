"""A fact beside a field: its annotation carries a mark, and whoever needs every field of that kind finds them by it.

    path: Annotated[str, Meta(extra={"mark": StoredPath(...)})]

A list of fields that is kept elsewhere forgets the next one; a mark is written where the field is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Meta, inspect

S = TypeVar("S", bound=msgspec.Struct)
Change = Callable[[Any, Any, Any], Any]
"""The value that a field gets, from its mark, its value and the struct that holds it."""
_Step = Callable[[Any, Any, Change], Any]
"""The changed value, from a value, the struct that holds it, and the change."""


class FieldMark:
    """Base of what an annotation says of a field; each subclass is a family that is looked for by itself."""


def marked(mark: FieldMark) -> Meta:
    """The annotation that carries `mark`; it says nothing about which values are valid, and no schema shows it."""
    return Meta(extra={"mark": mark})


def mark_of(kind: inspect.Type) -> FieldMark | None:
    """The mark of a field, from its inspected type."""
    found = (kind.extra or {}).get("mark") if isinstance(kind, inspect.Metadata) else None
    return found if isinstance(found, FieldMark) else None


def changed(value: S, family: Any, change: Change) -> S:
    """`value` with each field of a family's marks as `change` has it, at any depth; the same object if it has none.

    What lies below a marked field is that mark's own affair.
    """
    step = _struct_step(type(value), family)
    if step is None:
        return value
    made: S = step(value, None, change)
    return made


def carries(kind: type[msgspec.Struct], family: Any) -> bool:
    """True if a struct type has a field with a mark of this family, at any depth."""
    return _struct_step(kind, family) is not None


# Kept by type: a look at the fields costs more than all changes of an event, and an import looks at every record.
@cache
def _struct_step(kind: Any, family: Any) -> _Step | None:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType), kind
    found = [(field.name, step) for field in info.fields if (step := _step(field.type, family)) is not None]
    if not found:
        return None

    def replaced(value: Any, _holder: Any, change: Change) -> Any:
        fields = {name: step(getattr(value, name), value, change) for name, step in found}
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
            # One alternative at most: at run time nothing says which of two structs of a union a value was declared as.
            steps = [step for each in kind.types if (step := _step(each, family)) is not None]
            assert len(steps) <= 1, kind
            return _unless_none(steps[0]) if steps else None
        case inspect.VarTupleType():
            item = _step(kind.item_type, family)
            return None if item is None else _of_each(item)
        case _:
            return None


def _unless_none(step: _Step) -> _Step:
    return lambda value, holder, change: None if value is None else step(value, holder, change)


def _of_each(step: _Step) -> _Step:
    return lambda values, holder, change: tuple(step(value, holder, change) for value in values)
