"""`StoredPath`: marks the fields of events and specifications holding paths, with their use, in each field's
annotation.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from rftd.streams.log.marked import FieldMark, changed, marked

S = TypeVar("S", bound=msgspec.Struct)


class PathUse(Enum):
    """The meaning of a path for its experiment."""

    INPUT = "input"
    """Read by the experiment and carried by no export: a model, an adapter, a dataset."""
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
        """Returns the field's value with `move` applied to each path in it."""
        if self.use is PathUse.RELATIVE:
            return value
        if not self.arguments:
            return move(value)
        paths = {name: value[name] for name in self.arguments if isinstance(value.get(name), str)}
        return {**value, **{name: move(path) for name, path in paths.items()}}


InputPath: TypeAlias = Annotated[str, marked(StoredPath(PathUse.INPUT))]
OwnPath: TypeAlias = Annotated[str, marked(StoredPath(PathUse.OWN))]
RelativePath: TypeAlias = Annotated[str, marked(StoredPath(PathUse.RELATIVE))]
InputArguments: TypeAlias = Annotated[dict[str, Any], marked(StoredPath(PathUse.INPUT, arguments=("path",)))]
"""Arguments of a registered part, with a `path` read by the part."""


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
