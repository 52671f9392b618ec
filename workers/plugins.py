"""Named extensions: ours from an explicit table, third parties' from an entry-point group. Nothing is imported early.

A third party needs no packaging tool: a folder on PYTHONPATH with a module and a `<name>-0.dist-info` folder that
holds METADATA and entry_points.txt is enough.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from rftd.ops.errors import ConfigError

T = TypeVar("T")


class Plugins(Generic[T]):
    """The extensions of one kind, by name; `open` gives an instance."""

    def __init__(self, kind: str, *, group: str, table: Mapping[str, str]) -> None:
        self.kind = kind
        self.group = group
        self._table = dict(table)

    def names(self) -> tuple[str, ...]:
        """Every name that `open` knows, ours first; imports none of them."""
        return (*self._table, *(name for name in sorted(self._third_parties()) if name not in self._table))

    def builtin(self, name: str) -> bool:
        """True if the name is ours; a third party cannot replace one of ours."""
        return name in self._table

    def origin(self, name: str) -> str:
        """Where a third party's comes from: `package 1.2 (module:name)`; empty if it is not installed, or ours."""
        point = self._third_parties().get(name)
        if point is None or self.builtin(name):
            return ""
        package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "no package"
        return f"{package} ({point.value})"

    def check(self, name: str) -> None:
        """Raises ConfigError with the nearest name if `open` would not know this one; imports nothing."""
        if name in self._table or name in self._third_parties():
            return
        near = difflib.get_close_matches(name, self.names(), n=1)
        raise ConfigError(
            f"unknown {self.kind} {name!r}; known: {', '.join(self.names())}",
            fix=(f"did you mean {near[0]!r}? " if near else "")
            + f"one of your own is an entry point in the group {self.group!r}",
        )

    def load(self, name: str) -> Any:
        """The class or factory behind the name. Raises ConfigError if it is unknown or cannot be imported."""
        self.check(name)
        try:
            if name not in self._table:
                return self._third_parties()[name].load()
            module, _, attribute = self._table[name].partition(":")
            return getattr(importlib.import_module(module), attribute)
        except Exception as error:
            raise ConfigError(
                f"{self.kind} {name!r} cannot be imported: {type(error).__name__}: {error}",
                fix="install what it needs in the environment of the workers",
            ) from error

    def open(self, name: str, arguments: Mapping[str, Any] | None = None) -> T:
        """An instance made with the arguments of the experiment file. Raises ConfigError if they do not fit."""
        factory = self.load(name)
        try:
            made: T = factory(**dict(arguments or {}))
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{self.kind} {name!r} does not take its arguments {dict(arguments or {})!r}: {error}",
                fix=f"correct the arguments of the {self.kind}",
            ) from error
        return made

    def _third_parties(self) -> dict[str, EntryPoint]:
        # Read anew each time: it is asked once per name and runner, and module-level state would outlive a test.
        return {point.name: point for point in entry_points(group=self.group)}
