"""Ages, sizes and numbers in few characters."""

from __future__ import annotations

from rftd.ops.clock import Clock


def age(time_ns: int | None, clock: Clock) -> str:
    """The age of a point in time: `12s`, `5m`, `3h`, `2d`."""
    if time_ns is None:
        return "-"
    seconds = max(0.0, (clock.now_ns() - time_ns) / 1e9)
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        # From two units on: `1h` could be anything from 60 to 119 minutes.
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def size(count_bytes: int) -> str:
    """Bytes: `512 B`, `1.5 MiB`."""
    value = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(value, 1) < 1024:  # as it is printed: 1023.99 KiB is 1.0 MiB
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def number(value: float | None, digits: int = 3) -> str:
    """A number, or `-` for none."""
    return "-" if value is None else f"{value:.{digits}f}"


def short(id: str) -> str:
    """Enough of an id to name it among a day's: ids begin with their time, so both ends are shown."""
    return f"{id[:8]}..{id[-4:]}"
