"""`Plugins`, named extensions: built-in ones from a table, third parties' from an entry-point group, none imported
early.

A third party needs no packaging tool: a folder on PYTHONPATH with a module and a `<name>-0.dist-info` folder with
METADATA and entry_points.txt is enough.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Generic, TypeVar, get_type_hints

import msgspec

from rftd.ops.decoding import converted
from rftd.ops.errors import ConfigError

S = TypeVar("S", bound=msgspec.Struct)
"""Type of the arguments' struct."""

_NAMED: Final = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
"""Kinds of parameters that can be passed by name."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """The arguments of a plug-in with names, types and bounds. `Annotated[int, msgspec.Meta(ge=1)]` is an int of at
    least 1.
    """

    kind: type[msgspec.Struct]
    """A struct with an optional field for each argument."""
    required: tuple[str, ...]
    """Names of arguments without a default."""
    ignored: tuple[str, ...] = ()
    """Arguments of type `object`: accepted for the sake of existing files, without effect."""

    def wrong(self, arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yields (name, fault) of known arguments with invalid values, and of missing arguments."""
        for name, argument in arguments.items():
            if name not in self.kind.__struct_fields__:
                continue
            # Singly: msgspec stops at the first invalid value, and people want to see all.
            try:
                converted({name: argument}, self.kind)
            except msgspec.ValidationError as error:
                reason = str(error).partition(" - at ")[0]
                yield name, f"is {argument!r}: {reason[:1].lower()}{reason[1:]}"
        yield from ((name, "is not given, and has no default") for name in self.required if name not in arguments)


@cache
def declared(factory: Callable[..., Any]) -> Declaration | None:
    """Returns the arguments declared by the signature of a class or function; None if it accepts any, or has no
    signature.

    An argument without a type, or with a type outside of plain data, takes any value.
    """
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):  # no signature available
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    try:
        hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory, include_extras=True)
    except Exception:  # names known to a type checker only
        hints = {}
    named = [parameter for parameter in parameters if parameter.kind in _NAMED]
    fields = [
        (parameter.name, _plain(hints.get(parameter.name, Any)) | msgspec.UnsetType, msgspec.UNSET)
        for parameter in named
    ]
    return Declaration(
        kind=msgspec.defstruct(f"{factory.__name__}Arguments", fields),
        required=tuple(parameter.name for parameter in named if parameter.default is parameter.empty),
        ignored=tuple(parameter.name for parameter in named if hints.get(parameter.name) is object),
    )


def _plain(hint: Any) -> Any:
    """Returns the type, or Any for a type without validation by msgspec on plain data."""
    try:
        info = msgspec.inspect.type_info(hint)
    except Exception:  # a third party's annotation may be anything
        return Any
    return Any if isinstance(info, msgspec.inspect.CustomType) else hint


def parsed(arguments: Mapping[str, Any], kind: type[S], *, taker: str, field: str, beside: tuple[str, ...] = ()) -> S:
    """Converts the arguments to the struct declared by `taker`. Raises ConfigError with the known names.

    `beside` are further names allowed in the file and removed before.
    """
    try:
        return converted(dict(arguments), kind)
    except msgspec.ValidationError as error:
        known_names = (*kind.__struct_fields__, *beside)
        raise ConfigError(
            f"{taker} does not take {dict(arguments)!r}: {error}",
            field=field,
            fix=f"use {', '.join(known_names)}" if known_names else "write none",
        ) from error


T = TypeVar("T")
"""Type of the plug-ins."""
D = TypeVar("D")
"""Type of a definition."""


class Plugins(Generic[T]):
    """The built-in and third-party plug-ins of one kind, by name; `open` creates an instance."""

    def __init__(
        self, kind: str, *, group: str, table: Mapping[str, str], extras: Mapping[str, tuple[str, str]] | None = None
    ) -> None:
        """`extras` maps a built-in name to the needed module, and to the extra of rftd for its installation."""
        self.kind = kind
        self.group = group
        self._table = dict(table)
        self._extras = dict(extras or {})

    def names(self) -> tuple[str, ...]:
        """Returns every name known to `open`, built-in ones first, without importing any."""
        return (*self._table, *(name for name in sorted(self._third_parties()) if name not in self._table))

    def ours(self) -> tuple[str, ...]:
        """Returns the built-in names in the table's order, without importing any plug-in."""
        return tuple(self._table)

    def builtin(self, name: str) -> bool:
        """True if the name is built-in; no third party can replace built-in names."""
        return name in self._table

    def origin(self, name: str) -> str:
        """Returns the package of a third-party plug-in, as `package 1.2 (module:name)`; empty if built-in or not
        installed.
        """
        point = self._third_parties().get(name)
        if point is None or self.builtin(name):
            return ""
        package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "no package"
        return f"{package} ({point.value})"

    def check(self, name: str) -> None:
        """Raises ConfigError if `open` does not know the name, with the nearest name, or if an extra is missing.

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
            + f"a plug-in of yours is an entry point in the group {self.group!r}",
        )

    def load(self, name: str) -> Any:
        """Returns the class or factory behind the name. Raises ConfigError for an unknown name or a failed import."""
        self.check(name)
        try:
            if name not in self._table:
                return self._third_parties()[name].load()
            module, _, attribute = self._table[name].partition(":")
            return getattr(importlib.import_module(module), attribute)
        except Exception as error:  # a third party's module may raise anything on import
            raise ConfigError(
                f"{self.kind} {name!r} cannot be imported: {type(error).__name__}: {error}",
                fix="install what it needs in the environment of the workers",
            ) from error

    def definition(self, name: str, kind: type[D], path: str) -> D:
        """Returns the definition behind the name, an object of `kind`, known to third parties as `path`.

        Raises ConfigError as `load`, and for a third party's object of another type.
        """
        # load, not open: a definition is data and takes no arguments. A third party may have named anything.
        definition = self.load(name)
        if not isinstance(definition, kind):
            raise ConfigError(
                f"entry point {name!r} of the group {self.group!r} is a {type(definition).__name__}",
                fix=f"let it name an {path}",
            )
        return definition

    def arguments(self, name: str) -> tuple[str, ...] | None:
        """Returns the names of the plug-in's arguments; None if it accepts any name. Raises ConfigError as `load`."""
        declaration = self.declaration(name)
        return None if declaration is None else declaration.kind.__struct_fields__

    def declaration(self, name: str) -> Declaration | None:
        """Returns the plug-in's arguments with types and bounds; None if it accepts any. Raises ConfigError
        as `load`.
        """
        return declared(self.load(name))

    def check_arguments(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Raises ConfigError, with the argument as field, for arguments refused by `open`. Creates no instance.

        Checks names, types and bounds declared by the signature, then calls the extension's own `check_arguments`, if
        present: a static method with equal arguments, allowed to look at files.
        """
        declaration = self.declaration(name)
        known_names = () if declaration is None else declaration.kind.__struct_fields__
        unknown = [
            argument_name for argument_name in arguments if declaration is not None and argument_name not in known_names
        ]
        if unknown:
            near = difflib.get_close_matches(unknown[0], known_names, 1)
            raise ConfigError(
                f"{self.kind} {name!r} takes no argument {unknown[0]!r}",
                field=unknown[0],
                fix=f"did you mean {near[0]!r}?" if near else f"it takes: {', '.join(known_names) or 'none'}",
            )
        for argument, why in declaration.wrong(arguments) if declaration is not None else ():
            raise ConfigError(
                f"{self.kind} {name!r}: {argument} {why}",
                field=argument,
                fix=f"correct the arguments of the {self.kind}",
            )
        own_check = getattr(self.load(name), "check_arguments", None)
        if own_check is not None:
            own_check(**arguments)

    def open(self, name: str, arguments: Mapping[str, Any] | None = None) -> T:
        """Returns an instance created with the arguments of the experiment file. Raises ConfigError if they are
        invalid.
        """
        factory = self.load(name)
        self.check_arguments(name, arguments or {})
        try:
            instance: T = factory(**dict(arguments or {}))
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{self.kind} {name!r} does not take its arguments {dict(arguments or {})!r}: {error}",
                fix=f"correct the arguments of the {self.kind}",
            ) from error
        return instance

    def _third_parties(self) -> Mapping[str, EntryPoint]:
        """Returns the entry points of the group by name."""
        return _installed_entry_points(self.group, tuple(_entry_point_files()))


def _entry_point_files() -> Iterator[tuple[str, int]]:
    """Yields each entry of `sys.path`, and each file of entry points there with the time of its last change in ns."""
    for folder in sys.path:
        yield folder, 0
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue  # a zip file, or a folder that does not exist
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                file = os.path.join(folder, name, "entry_points.txt")
                with suppress(OSError):  # most packages have none
                    yield file, os.stat(file).st_mtime_ns


@lru_cache(maxsize=64)
def _installed_entry_points(group: str, files: tuple[tuple[str, int], ...]) -> Mapping[str, EntryPoint]:
    """Returns the group's entry points of installed packages, by name.

    Reading takes 12 ms with 170 packages, and one check of an experiment asks several times: read again after a change
    of `sys.path` or of a file of entry points alone.
    """
    return {point.name: point for point in entry_points(group=group)}
