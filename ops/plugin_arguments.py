"""The arguments that an extension takes, as its constructor's signature declares them."""

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
    """A struct with a field for each argument, none of which has to be there."""
    required: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    """Arguments of type `object`: they are taken for the sake of files that have them, and change nothing."""

    def wrong(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """(name, fault) of known arguments whose values do not fit, and of those that are missing."""
        for name, value in given.items():
            if name not in self.kind.__struct_fields__:
                continue
            # One at a time: msgspec stops at the first value that does not fit, and people want all of them.
            try:
                converted({name: value}, self.kind)
            except msgspec.ValidationError as error:
                reason = str(error).partition(" - at ")[0]
                yield name, f"is {value!r}: {reason[:1].lower()}{reason[1:]}"
        yield from ((name, "is not given, and has no default") for name in self.required if name not in given)


@cache
def declared(factory: Callable[..., Any]) -> Declaration | None:
    """The arguments that a class or function declares; None if it takes any, or does not say.

    An argument without a type, or with one that no plain data has, takes any value.
    """
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):  # one that does not say
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    try:
        hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory, include_extras=True)
    except Exception:  # names that are known to a type checker only
        hints = {}
    named = [parameter for parameter in parameters if parameter.kind in _NAMED]
    fields = [(each.name, _plain(hints.get(each.name, Any)) | msgspec.UnsetType, msgspec.UNSET) for each in named]
    return Declaration(
        kind=msgspec.defstruct(f"{factory.__name__}Arguments", fields),
        required=tuple(each.name for each in named if each.default is each.empty),
        ignored=tuple(each.name for each in named if hints.get(each.name) is object),
    )


def _plain(hint: Any) -> Any:
    """The type, or Any for one that msgspec cannot tell from plain data."""
    try:
        known = msgspec.inspect.type_info(hint)
    except Exception:  # whatever a third party wrote there
        return Any
    return Any if isinstance(known, msgspec.inspect.CustomType) else hint


def parsed(arguments: Mapping[str, Any], kind: type[S], *, taker: str, field: str, beside: tuple[str, ...] = ()) -> S:
    """The arguments as the struct that says what `taker` takes. Raises ConfigError with the names that it knows.

    `beside` are names that a file may write there too, and that were taken out before.
    """
    try:
        return converted(dict(arguments), kind)
    except msgspec.ValidationError as error:
        known = (*kind.__struct_fields__, *beside)
        raise ConfigError(
            f"{taker} does not take {dict(arguments)!r}: {error}",
            field=field,
            fix=f"use {', '.join(known)}" if known else "write none",
        ) from error
