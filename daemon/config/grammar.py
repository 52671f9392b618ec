"""Parsing of texts: `${...}` by the part of OmegaConf's grammar used in experiment files, and plain words by YAML's.

YAML 1.1 as known to users of the guide (`yes` is true, `1_000` is a number), without the traps: `1e-5` is a number,
`010` and `12:30:00` are text, and a number too large for 64 bits is text, later refused by a numeric field.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

Scalar = str | int | float | bool | None
"""A plain value."""

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
"""Words for null."""
_TRUE = frozenset({"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
"""Words for true."""
_FALSE = frozenset({"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})
"""Words for false."""
# The lengths are bounded because int() of a long decimal text takes quadratic time, and Python refuses one of more
# than 4,300 digits with a ValueError.
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]{0,24})|0x[0-9a-fA-F]{1,16}|0o[0-7]{1,21}")
"""A whole number."""
_FLOAT = re.compile(r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*\.?[0-9_]*)([eE][-+]?[0-9]{1,4})?")
"""A number with a fraction or an exponent, or digits alone."""
_FLOAT_LOOKS = re.compile(r"[.eE]")
"""Characters of which a float has at least one."""
_SPECIAL = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
"""Words for infinite numbers and NaN."""


class EnvText(str):
    """Text of an environment variable, converted to a number in a numeric field."""

    __slots__ = ()


def read_scalar(text: str) -> Scalar:
    """Returns the value of a plain (unquoted) word: null, a boolean, a number, or the text itself."""
    if text in _NULLS:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if _INT.fullmatch(text):
        number = int(text.replace("_", ""), 0) if text[:2] in ("0x", "0o") else int(text.replace("_", ""))
        return number if -(2**63) <= number < 2**63 else text
    # Without a point or an exponent the word is no float: `010` stays text.
    if len(text) <= 64 and _FLOAT_LOOKS.search(text) and _FLOAT.fullmatch(text):
        number_read = float(text.replace("_", ""))
        # `1e999` overflows to infinity, allowed only as `.inf`.
        return number_read if math.isfinite(number_read) else text
    return _SPECIAL.get(text.lower(), text)


# The parser recurses once per level: the bound keeps hostile text off the interpreter's stack.
_DEPTH: Final = 8
"""Maximum nesting of interpolations."""


class GrammarError(ValueError):
    """Raised for an unclosed or empty `${`, an unclosed quote, or interpolations nested too deep."""


@dataclass(frozen=True, slots=True)
class FieldReference:
    """An interpolation naming another field, such as `${model.model_path}`; leading dots make it relative."""

    target: tuple[Piece, ...]
    """Text of the field's path, in pieces."""


@dataclass(frozen=True, slots=True)
class Call:
    """An interpolation with a resolver and its arguments, such as `${oc.env:NAME,default}`."""

    resolver: str
    """Name of the resolver."""
    args: tuple[tuple[Piece, ...], ...]
    """Arguments, each in pieces."""


Piece = str | FieldReference | Call
"""A literal text, or an interpolation."""


def has_interpolation(text: str) -> bool:
    """True if the text holds a `${`, escaped or not."""
    return "${" in text


# Matches only at the first backslash of a run: a text of a million backslashes is scanned once.
_OPENED: Final = re.compile(r"(?<!\\)(\\*)\$\{")
"""A `${` with the backslashes before."""
_BACKSLASHES: Final = re.compile(r"\\+")
"""Consecutive backslashes."""


def escape(text: str) -> str:
    r"""Escapes every `${` of the text as `\${`, by OmegaConf's rule, so that a file holding the text keeps it as text.

    Backslashes directly before a `${` are doubled; all other backslashes stay single.
    """
    return _OPENED.sub(lambda match: f"{match[1] * 2}\\${{", text) if has_interpolation(text) else text


def parse_interpolation(text: str) -> tuple[Piece, ...]:
    """Splits `text` into literal texts, references to fields and calls of resolvers, in order. Raises GrammarError."""
    pieces, end = _pieces(text, 0, "", 0)
    assert end == len(text)
    return pieces


def _pieces(text: str, start: int, stops: str, depth: int) -> tuple[tuple[Piece, ...], int]:
    """Returns the pieces from `start` to the first character of `stops` (or the end), and the position reached."""
    if depth > _DEPTH:
        raise GrammarError(f"nested deeper than {_DEPTH} levels")
    pieces: list[Piece] = []
    literal: list[str] = []
    position = start
    brackets = 0

    def flush() -> None:
        if literal:
            pieces.append("".join(literal))
            literal.clear()

    while position < len(text):
        char = text[position]
        # Within an interpolation a backslash is no escape.
        if not stops and (run := _BACKSLASHES.match(text, position)):
            position = run.end()
            opens = text.startswith("${", position)
            literal.append(run[0][: len(run[0]) // 2] if opens else run[0])
            if opens and len(run[0]) % 2:
                literal.append("${")
                position += 2
            continue
        if text.startswith("${", position):
            flush()
            piece, position = _interpolation(text, position + 2, depth + 1)
            pieces.append(piece)
            continue
        # OmegaConf reads quotes only at the start of an argument; elsewhere quotes are part of the text.
        if stops and char in "'\"" and not pieces and not "".join(literal).strip():
            quoted, position = _quoted(text, position)
            literal[:] = [quoted]
            continue
        # A comma or a colon inside brackets belongs to an argument that is a list or a mapping, for example a default.
        if stops and brackets == 0 and char in stops:
            break
        brackets += (char in "[{") - (char in "]}") if stops else 0
        literal.append(char)
        position += 1
    flush()
    return tuple(pieces), position


def _interpolation(text: str, start: int, depth: int) -> tuple[FieldReference | Call, int]:
    """Parses the interpolation whose `${` ends at `start`; returns the piece and the position after the `}`."""
    head, position = _pieces(text, start, ":}", depth)
    if position >= len(text):
        raise GrammarError("`${` is not closed by `}`")
    if text[position] == "}":
        target = _stripped(head)
        if not target:
            raise GrammarError("`${}` is empty")
        return FieldReference(target), position + 1
    # A resolver is named in plain text: references within the name are ignored.
    name = "".join(piece for piece in head if isinstance(piece, str)).strip()
    args: list[tuple[Piece, ...]] = []
    while True:
        arg, position = _pieces(text, position + 1, ",}", depth)
        args.append(_stripped(arg))
        if position >= len(text):
            raise GrammarError("`${` is not closed by `}`")
        if text[position] == "}":
            return Call(name, tuple(args)), position + 1


def _stripped(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Returns pieces without blanks at both ends."""
    if pieces and isinstance(pieces[0], str):
        pieces = (pieces[0].lstrip(), *pieces[1:])
    if pieces and isinstance(pieces[-1], str):
        pieces = (*pieces[:-1], pieces[-1].rstrip())
    return tuple(piece for piece in pieces if piece != "")


def _quoted(text: str, start: int) -> tuple[str, int]:
    """Returns the text in the quote beginning at `start`, and the position after the quote. Raises GrammarError without
    an end.
    """
    end = text.find(text[start], start + 1)
    if end < 0:
        raise GrammarError("a quote is not closed")
    return text[start + 1 : end], end + 1
