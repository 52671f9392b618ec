"""`Plugins`, named extensions: ours from a table, third parties' from an entry-point group, none imported early.

A third party needs no packaging tool: a folder on PYTHONPATH with a module and a `<name>-0.dist-info` folder that
holds METADATA and entry_points.txt is enough.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from rftd.ops.errors import ConfigError
from rftd.ops.plugin_arguments import Declaration, declared

T = TypeVar("T")


class Plugins(Generic[T]):
    """The extensions of one kind, by name; `open` gives an instance."""

    def __init__(
        self, kind: str, *, group: str, table: Mapping[str, str], extras: Mapping[str, tuple[str, str]] | None = None
    ) -> None:
        """`extras` has the module that one of ours needs, and the extra of rftd that installs it."""
        self.kind = kind
        self.group = group
        self._table = dict(table)
        self._extras = dict(extras or {})

    def names(self) -> tuple[str, ...]:
        """Every name that `open` knows, ours first; imports none of them."""
        return (*self._table, *(name for name in sorted(self._third_parties()) if name not in self._table))

    def ours(self) -> tuple[str, ...]:
        """The names in our table; imports none of them."""
        return tuple(self._table)

    def builtin(self, name: str) -> bool:
        """True if the name is ours; a third party cannot replace one of ours."""
        return name in self._table

    def origin(self, name: str) -> str:
        """The origin of a third party's: `package 1.2 (module:name)`; empty if it is not installed, or ours."""
        point = self._third_parties().get(name)
        if point is None or self.builtin(name):
            return ""
        package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "no package"
        return f"{package} ({point.value})"

    def check(self, name: str) -> None:
        """Raises ConfigError if `open` would not know this one, with the nearest name, or lacks its extra.

        Imports nothing.
        """
        module, extra = self._extras.get(name, ("", ""))
        if module and importlib.util.find_spec(module) is None:
            raise ConfigError(
                f"{self.kind} {name!r} needs the module {module}, which is not installed",
                fix=f"install rftd with its extra `{extra}`: pip install 'rftd[{extra}]'",
            )
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
        except Exception as error:  # a third party's module may raise anything while it is imported
            raise ConfigError(
                f"{self.kind} {name!r} cannot be imported: {type(error).__name__}: {error}",
                fix="install what it needs in the environment of the workers",
            ) from error

    def arguments(self, name: str) -> tuple[str, ...] | None:
        """The names of the arguments that the extension takes; None if it takes any. Raises ConfigError as `load`."""
        declaration = self.declaration(name)
        return None if declaration is None else declaration.kind.__struct_fields__

    def declaration(self, name: str) -> Declaration | None:
        """The arguments with their types and bounds; None if the extension takes any. Raises ConfigError as `load`."""
        return declared(self.load(name))

    def check_arguments(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Raises ConfigError, whose field is the argument, for one that `open` refuses. Makes no instance.

        That is by names, types and bounds that the signature declares, then by the `check_arguments` of the extension
        itself if it has one: a static method that takes the same arguments and may look at files.
        """
        declaration = self.declaration(name)
        known = () if declaration is None else declaration.kind.__struct_fields__
        unknown = [each for each in arguments if declaration is not None and each not in known]
        if unknown:
            near = difflib.get_close_matches(unknown[0], known, 1)
            raise ConfigError(
                f"{self.kind} {name!r} takes no argument {unknown[0]!r}",
                field=unknown[0],
                fix=f"did you mean {near[0]!r}?" if near else f"it takes: {', '.join(known) or 'none'}",
            )
        for argument, why in declaration.wrong(arguments) if declaration is not None else ():
            raise ConfigError(
                f"{self.kind} {name!r}: {argument} {why}",
                field=argument,
                fix=f"correct the arguments of the {self.kind}",
            )
        own = getattr(self.load(name), "check_arguments", None)
        if own is not None:
            own(**arguments)

    def open(self, name: str, arguments: Mapping[str, Any] | None = None) -> T:
        """An instance made with the arguments of the experiment file. Raises ConfigError if they do not fit."""
        factory = self.load(name)
        self.check_arguments(name, arguments or {})
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
