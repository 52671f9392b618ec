"""The frame of every benchmark: options, medians of pairs, quantiles, memory, the machine; figures as JSON, or none.

A zero that comes of a run that did nothing must not look like a figure.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

_MEASURED: Final = re.compile(r".*_per_s|(.*_)?(s|ms|us|ns)|.*_(ms|us)_.*|p\d\d|.*ratios?(_.*)?|of_optimum|rate")
"""Names of rates, times and what is made of them; counts may be zero."""
_MAY_BE_ZERO: Final = frozenset({"steal_s", "dropped_per_s"})


def read_options(about: str | None, arguments: Sequence[str] | None = None, /, **table: Any) -> argparse.Namespace:
    """Reads the command line by a table of options.

    An option is its default, the type of its text, a pair of either and its help, or all words of `add_argument`, with
    `flag` for another spelling. A default false is a switch, and a list takes several texts.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, option in table.items():
        words = _option(option)
        parser.add_argument(words.pop("flag", f"--{name.replace('_', '-')}"), dest=name, **words)
    return parser.parse_args(arguments)


def _option(option: Any) -> dict[str, Any]:
    match option:
        case dict():
            return dict(option)
        case tuple():
            return {**_option(option[0]), "help": option[1]}
        case bool():
            return {"action": "store_true"}
        case list():
            return {"nargs": "+", "type": type(option[0]) if option else str, "default": option}
        case type():
            return {"type": option}
    return {"type": type(option), "default": option}


def note(figures: Any) -> None:
    """Prints the figures of a run on the way, as a line of JSON, beside those of `tell`."""
    print(json.dumps(msgspec.to_builtins(figures)), file=sys.stderr, flush=True)


def memory_bytes(name: str, pid: int | str = "self") -> int:
    """Memory of a process by the kernel: VmRSS, RssAnon, or VmHWM, the most since `forget_peak`."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def forget_peak(pid: int | str = "self") -> None:
    """Begins VmHWM anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def cpu_ticks() -> list[int]:
    """The machine's counters: user, nice, system, idle, iowait, irq, softirq, steal."""
    return [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


_BEGUN: Final = cpu_ticks()


def machine() -> dict[str, Any]:
    """The machine's facts, and the share of time that its host gave to others since this process began."""
    spent = [now - begun for begun, now in zip(_BEGUN, cpu_ticks(), strict=True)]
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": model[1] if model else "",
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "steal_percent": round(100 * spent[7] / max(1, sum(spent)), 2),
    }


def median_of(values: Iterable[float], digits: int = 0) -> float:
    """The median, rounded; a whole number where no digits are asked for."""
    return round(statistics.median(values), digits or None)


def median_ratio(these: Iterable[float], others: Iterable[float], digits: int = 2) -> float:
    """The median of the ratios of runs that followed one another in pairs."""
    return round(statistics.median(one / other for one, other in zip(these, others, strict=True)), digits)


def quantiles(values: Sequence[float], *shares: float, digits: int = 2) -> dict[str, float]:
    """Quantiles by their names, such as p95, of the nearest rank; and the largest value."""
    ordered = sorted(values)
    ranks = {f"p{round(100 * share)}": ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in shares}
    return {name: round(value, digits) for name, value in (*ranks.items(), ("max", ordered[-1]))}


def tell(figures: Any, *, may_be_zero: Collection[str] = ()) -> None:
    """Prints the figures and the machine's facts as JSON, if each figure is one.

    Else ends the process with status 1 and names the others.
    """
    plain = msgspec.to_builtins(figures)
    if wrong := list(no_figures(plain, may_be_zero)):
        sys.exit("this run measured nothing: " + ", ".join(wrong))
    if isinstance(plain, dict):
        plain = plain | {"machine": machine()}
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
