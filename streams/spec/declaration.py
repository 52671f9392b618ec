"""Marks of a declared field of the experiment file: unit, kind of name in the text, older words, and effect.

A section is declared once, as a struct with marks in the annotations beside the bounds (`msgspec.Meta`). The reader of
files, the JSON Schema, the page of every field and the table of trust are derived from the declaration.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta


@dataclass(frozen=True, slots=True)
class InUnit:
    """Marks a number with its unit: `s`, `steps`, `tokens`."""

    name: str


@dataclass(frozen=True, slots=True)
class Upstream:
    """The field's default or meaning in the guide or in Trinity-RFT, if different."""

    text: str


class OlderWords:
    """Older synonyms of the field's words, from the guide's older releases or veRL."""

    def __init__(self, **words: str) -> None:
        self.words: Final = words


class NameKind(StrEnum):
    """The kind of thing named by a field's value."""

    PATH = "path"
    """A file or a folder."""
    PATH_PART = "path_part"
    """A file or a folder below another one."""
    URL = "url"
    """The address of a service for requests, as text or as `{env: NAME}`."""
    ADDRESS = "address"
    """An address to listen on, or the address of a cluster."""
    VARIABLE = "variable"
    """A variable of the environment: its name, `{env: NAME}`, or a mapping of names to values."""
    CODE = "code"
    """A switch: true runs the code in a model's folder."""
    ARGUMENTS = "arguments"
    """A mapping of arguments interpreted by an engine or a plug-in."""
    SOURCE = "source"
    """Python code by its text."""
    PLUGIN = "plugin"
    """The name of a part installed by the daemon's owner."""
    PLAIN = "plain"
    """Text with no meaning outside of the file."""


@dataclass(frozen=True, slots=True)
class NamingMark:
    """Marks a field with the kind of thing named by its value."""

    kind: NameKind


PATH: Final = NamingMark(NameKind.PATH)
PATH_PART: Final = NamingMark(NameKind.PATH_PART)
URL: Final = NamingMark(NameKind.URL)
ADDRESS: Final = NamingMark(NameKind.ADDRESS)
VARIABLE: Final = NamingMark(NameKind.VARIABLE)
CODE: Final = NamingMark(NameKind.CODE)
ARGUMENTS: Final = NamingMark(NameKind.ARGUMENTS)
PLUGIN: Final = NamingMark(NameKind.PLUGIN)
SOURCE: Final = NamingMark(NameKind.SOURCE)
PLAIN: Final = NamingMark(NameKind.PLAIN)


@dataclass(frozen=True, slots=True)
class FieldEffect:
    """The effect of a field, as stated by the field's declaration."""

    effect: Literal["acts", "checked", "harmless", "refused"] = "acts"
    why: str = ""
    fix: str = ""
    same_as: str = ""
    """A field that may state the refused field's meaning instead."""
    promises: bool = False
    """True for a harmless field whose default is reported, too, when written: even the default requests something."""


ACTS: Final = FieldEffect()
HARMLESS: Final = FieldEffect("harmless")

Steps: TypeAlias = Annotated[int, Meta(ge=1, le=10**9), InUnit("steps")]
Natural: TypeAlias = Annotated[int, Meta(ge=0, le=10**9)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=10**9), InUnit("s")]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
