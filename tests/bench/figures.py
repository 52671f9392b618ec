"""What a benchmark prints: figures, or nothing. A zero that comes of a run that did nothing must not look like one."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Collection, Iterator
from typing import Any, Final

import msgspec

_MEASURED: Final = re.compile(r".*_per_s|(.*_)?(s|ms|us|ns)|.*_(ms|us)_.*|p\d\d|.*ratios?(_.*)?|of_optimum|rate")
"""Names of rates, times and what is made of them; counts may be zero."""
_MAY_BE_ZERO: Final = frozenset({"steal_s", "dropped_per_s"})


def tell(figures: Any, *, may_be_zero: Collection[str] = ()) -> None:
    """Prints the figures as JSON, if each of them is one; else ends the process with status 1 and names the others."""
    plain = msgspec.to_builtins(figures)
    if wrong := list(no_figures(plain, may_be_zero)):
        sys.exit("this run measured nothing: " + ", ".join(wrong))
    print(json.dumps(plain, indent=1), flush=True)


def no_figures(plain: Any, may_be_zero: Collection[str] = ()) -> Iterator[str]:
    """What is not finite, and rates, times and ratios that are not above zero; also if there is no number at all."""
    numbers = 0
    for path, value in _numbers(plain, ""):
        numbers += 1
        name = next(part for part in reversed(path.split(".")) if not part.isdigit())
        zero = value <= 0 and _MEASURED.fullmatch(name) and name not in _MAY_BE_ZERO and name not in may_be_zero
        if zero or not math.isfinite(value):
            yield f"{path} = {value}"
    if not numbers:
        yield "no number at all"


def _numbers(plain: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(plain, dict | list):
        pairs = plain.items() if isinstance(plain, dict) else enumerate(plain)
        for key, value in pairs:
            yield from _numbers(value, f"{path}.{key}" if path else str(key))
    elif isinstance(plain, int | float) and not isinstance(plain, bool):
        yield path, plain
