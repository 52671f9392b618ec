"""Marks of a declared field of the experiment file: its unit, what its text names, its older words, and its effect.

A section is declared once, as a struct whose annotations carry these marks beside the bounds (`msgspec.Meta`). The
reader of files, the JSON Schema, the page of every field and the table of trust are derived from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta


@dataclass(frozen=True, slots=True)
class InUnit:
    """The unit of a number."""

    name: str


@dataclass(frozen=True, slots=True)
class Upstream:
    """The field's default or meaning in the guide or in Trinity-RFT, where it differs."""

    text: str


class OlderWords:
    """Words that stand for one of the field's own, as the guide's older releases or veRL have them."""

    def __init__(self, **words: str) -> None:
        self.words: Final = words


class NameKind(StrEnum):
    """The kind of thing that a field's value names."""

    PATH = "path"
    """A file or a folder."""
    PATH_PART = "path_part"
    """A file or a folder below another one."""
    URL = "url"
    """The address of a service that is asked, as text or as `{env: NAME}`."""
    ADDRESS = "address"
    """An address to listen on, or the address of a cluster."""
    VARIABLE = "variable"
    """A variable of the environment: its name, `{env: NAME}`, or a mapping of names to values."""
    CODE = "code"
    """A switch: true runs the code in a model's folder."""
    ARGUMENTS = "arguments"
    """A mapping of arguments that an engine or a plug-in interprets."""
    PLUGIN = "plugin"
    """The name of a part that the daemon's owner installed."""
    PLAIN = "plain"
    """Text that names nothing outside of the file."""


@dataclass(frozen=True, slots=True)
class NamingMark:
    """The `NameKind` of a field."""

    kind: NameKind


PATH: Final = NamingMark(NameKind.PATH)
PATH_PART: Final = NamingMark(NameKind.PATH_PART)
URL: Final = NamingMark(NameKind.URL)
ADDRESS: Final = NamingMark(NameKind.ADDRESS)
VARIABLE: Final = NamingMark(NameKind.VARIABLE)
CODE: Final = NamingMark(NameKind.CODE)
ARGUMENTS: Final = NamingMark(NameKind.ARGUMENTS)
PLUGIN: Final = NamingMark(NameKind.PLUGIN)
PLAIN: Final = NamingMark(NameKind.PLAIN)


@dataclass(frozen=True, slots=True)
class FieldEffect:
    """The way in which a field acts, as its declaration says it."""

    effect: Literal["acts", "checked", "harmless", "refused"] = "acts"
    why: str = ""
    fix: str = ""
    same_as: str = ""
    """A refused field may say what this field says."""
    promises: bool = False
    """True of a harmless field whose default, too, is spoken of where it is written: it asks for something."""


ACTS: Final = FieldEffect()
HARMLESS: Final = FieldEffect("harmless")

Steps: TypeAlias = Annotated[int, Meta(ge=1, le=10**9), InUnit("steps")]
Natural: TypeAlias = Annotated[int, Meta(ge=0, le=10**9)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=10**9), InUnit("s")]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
