"""`StoredPath`: which fields of events and specifications are paths, and whose, said in each field's annotation."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from rftd.streams.log.marked import FieldMark, changed, marked

S = TypeVar("S", bound=msgspec.Struct)


class PathUse(Enum):
    """The part that a path plays for its experiment."""

    INPUT = "input"
    """The experiment reads it, and no export carries it: a model, an adapter, a dataset."""
    OWN = "own"
    """The experiment writes it, and makes it where it lacks."""
    RELATIVE = "relative"
    """It is relative to a folder that is a field of its own, and moves with that."""


class StoredPath(FieldMark):
    """The field is a path; in a mapping those values are which `arguments` name."""

    def __init__(self, use: PathUse, *, arguments: tuple[str, ...] = ()) -> None:
        self.use = use
        self.arguments = arguments

    def moved(self, value: Any, move: Callable[[str], str]) -> Any:
        """The field's value with `move` applied to each path in it."""
        if self.use is PathUse.RELATIVE:
            return value
        if not self.arguments:
            return move(value)
        found = {name: value[name] for name in self.arguments if isinstance(value.get(name), str)}
        return {**value, **{name: move(path) for name, path in found.items()}}


InputPath: TypeAlias = Annotated[str, marked(StoredPath(PathUse.INPUT))]
OwnPath: TypeAlias = Annotated[str, marked(StoredPath(PathUse.OWN))]
RelativePath: TypeAlias = Annotated[str, marked(StoredPath(PathUse.RELATIVE))]
InputArguments: TypeAlias = Annotated[dict[str, Any], marked(StoredPath(PathUse.INPUT, arguments=("path",)))]
"""Arguments of a registered part, whose `path` is something that the part reads."""


def moved(value: S, move: Callable[[str], str]) -> S:
    """An event or a specification with `move` applied to each path; the same object if it has none."""
    return changed(value, StoredPath, lambda mark, field, _: mark.moved(field, move))


def inputs_of(spec: msgspec.Struct) -> set[str]:
    """The models, adapters and datasets that a specification reads, as absolute paths; no export carries them."""
    found = set[str]()

    def seen(path: str) -> str:
        found.add(path)
        return path

    # A walk that changes nothing: `changed` knows where the paths lie.
    changed(spec, StoredPath, lambda mark, field, _: mark.moved(field, seen) if mark.use is PathUse.INPUT else field)
    return {path for path in found if path.startswith("/")}
