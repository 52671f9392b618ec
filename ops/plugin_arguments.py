"""The arguments of an extension, as declared by its constructor's signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar, get_type_hints

import msgspec

from rftd.ops.decoding import converted
from rftd.ops.errors import ConfigError

S = TypeVar("S", bound=msgspec.Struct)

_NAMED: Final = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Declaration:
    """Names, types and bounds of arguments. `Annotated[int, msgspec.Meta(ge=1)]` is an int of at least 1."""

    kind: type[msgspec.Struct]
    """A struct with an optional field for each argument."""
    required: tuple[str, ...]
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
    """Returns the declared arguments of a class or function; None if it takes any arguments, or has no signature.

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
