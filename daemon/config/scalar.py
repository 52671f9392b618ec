"""`read_scalar` gives the meaning of a plain word of YAML.

YAML 1.1 as users of the guide know it (`yes` is true, `1_000` is a number), without its traps: `1e-5` is a number,
`010` and `12:30:00` are text, and a number too large for 64 bits is text, which a numeric field then refuses.
"""

from __future__ import annotations

import math
import re

Scalar = str | int | float | bool | None

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
_FALSE = frozenset({"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})
# The lengths are bounded because int() of a long decimal text takes quadratic time, and Python refuses one of more
# than 4,300 digits with a ValueError.
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]{0,24})|0x[0-9a-fA-F]{1,16}|0o[0-7]{1,21}")
_FLOAT = re.compile(r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*\.?[0-9_]*)([eE][-+]?[0-9]{1,4})?")
_FLOAT_LOOKS = re.compile(r"[.eE]")
_SPECIAL = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}


class EnvText(str):
    """Text of an environment variable: in a numeric field it stands for the number it spells."""

    __slots__ = ()


def read_scalar(text: str) -> Scalar:
    """The value of a plain (unquoted) word."""
    if text in _NULLS:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if _INT.fullmatch(text):
        number = int(text.replace("_", ""), 0) if text[:2] in ("0x", "0o") else int(text.replace("_", ""))
        return number if -(2**63) <= number < 2**63 else text
    # Without a point or an exponent it is no float: `010` stays text.
    if len(text) <= 64 and _FLOAT_LOOKS.search(text) and _FLOAT.fullmatch(text):
        value = float(text.replace("_", ""))
        # `1e999` overflows to infinity, which only `.inf` may mean.
        return value if math.isfinite(value) else text
    return _SPECIAL.get(text.lower(), text)
