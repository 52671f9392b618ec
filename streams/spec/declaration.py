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
    """The unit."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """The field's default or meaning in the guide or in Trinity-RFT, if different."""

    text: str
    """The other default or meaning, as a text for people."""


class OlderWords:
    """Older synonyms of the field's words, from the guide's older releases or veRL."""

    def __init__(self, **words: str) -> None:
        """Marks with the older words, each with its present word."""
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
    """The kind of thing."""


PATH: Final = NamingMark(NameKind.PATH)
"""Marks a path."""
PATH_PART: Final = NamingMark(NameKind.PATH_PART)
"""Marks a path below another one."""
URL: Final = NamingMark(NameKind.URL)
"""Marks the address of a service."""
ADDRESS: Final = NamingMark(NameKind.ADDRESS)
"""Marks an address to listen on, or a cluster's."""
VARIABLE: Final = NamingMark(NameKind.VARIABLE)
"""Marks a variable of the environment."""
CODE: Final = NamingMark(NameKind.CODE)
"""Marks a switch for running a model's code."""
ARGUMENTS: Final = NamingMark(NameKind.ARGUMENTS)
"""Marks a mapping of arguments."""
PLUGIN: Final = NamingMark(NameKind.PLUGIN)
"""Marks the name of an installed part."""
SOURCE: Final = NamingMark(NameKind.SOURCE)
"""Marks Python code."""
PLAIN: Final = NamingMark(NameKind.PLAIN)
"""Marks text without a meaning outside of the file."""


@dataclass(frozen=True, slots=True)
class FieldEffect:
    """The effect of a field, as stated by the field's declaration."""

    effect: Literal["acts", "checked", "harmless", "refused"] = "acts"
    """`acts`: has an effect; `checked`: only compared; `harmless`: accepted without effect; `refused`: an error
    if set.
    """
    why: str = ""
    """Reason for a field without effect or a refused one."""
    fix: str = ""
    """What to write instead of a refused field."""
    same_as: str = ""
    """A field that may state the refused field's meaning instead."""
    promises: bool = False
    """True for a harmless field whose default is reported, too, when written: even the default requests something."""


ACTS: Final = FieldEffect()
"""Marks a field with an effect."""
HARMLESS: Final = FieldEffect("harmless")
"""Marks a field accepted without effect."""

Steps: TypeAlias = Annotated[int, Meta(ge=1, le=10**9), InUnit("steps")]
"""A positive number of steps."""
Natural: TypeAlias = Annotated[int, Meta(ge=0, le=10**9)]
"""A whole number from 0 on."""
Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=10**9), InUnit("s")]
"""A positive duration."""
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
"""A number from 0 to 1."""
