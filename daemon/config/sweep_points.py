"""`sweep_points`: the runs of a sweep, from overrides of which some have several values."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from rftd.ops.errors import UsageError
from rftd.streams.events.sweep import FieldChange

_OPENING: Final = "([{"
_CLOSING: Final = ")]}"
_QUOTES: Final = "'\""
SEED: Final = "seed"
_FIRST_SEED: Final = 42
"""The seed of an experiment file that gives none."""


class Axis(NamedTuple):
    """A field of the experiment file, and the values that the runs of a sweep have there, as they were written."""

    field: str
    values: tuple[str, ...]


class SweptRun(NamedTuple):
    """One run: its settings, its seed, and its whole file."""

    settings: dict[str, str]
    seed: int
    config: dict[str, Any]


Load: TypeAlias = Callable[[tuple[str, ...]], dict[str, Any]]
"""Reads the experiment file with overrides. Raises ConfigErrors."""


def split_values(text: str) -> list[str]:
    """The values between commas that no bracket and no quote holds."""
    values = [""]
    depth = 0
    quote = ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        if character == "," and not quote and depth <= 0:
            values.append("")
        else:
            values[-1] += character
    return [value.strip() for value in values]


def axes_of(overrides: Sequence[str]) -> tuple[list[str], list[Axis]]:
    """The overrides with one value, and those with several. Raises UsageError for a value twice, and for none."""
    fixed: list[str] = []
    axes: list[Axis] = []
    for override in overrides:
        field, _, text = override.partition("=")
        field = field.strip()
        values = split_values(text)
        if len(values) == 1:
            fixed.append(override)
            continue
        if "" in values:
            fix = "write each value between commas; quote one that holds a comma"
            raise UsageError(f"{field} has an empty value: {text!r}", field=field, fix=fix)
        if twice := next((value for value in values if values.count(value) > 1), None):
            raise UsageError(f"{field} has the value {twice} twice", field=field, fix="give each value once")
        if field in (axis.field for axis in axes):
            raise UsageError(f"{field} is given twice", field=field, fix=f"write -s {field}=A,B,C once")
        if field == SEED:
            fix = "write --seeds N, so that the table has mean and spread over seeds"
            raise UsageError("seed is not a field to sweep", field=field, fix=fix)
        axes.append(Axis(field, tuple(values)))
    return fixed, axes


def check_size(axes: Sequence[Axis], seeds: int, most: int, *, possible: int) -> None:
    """Raises UsageError for a sweep of one run, and for one of more runs than `most`, which may be up to `possible`."""
    runs = prod(len(axis.values) for axis in axes) * seeds
    if runs == 1:
        fix = "give a field several values, such as -s algorithm.optimizer.lr=1e-6,3e-6, or --seeds 3"
        raise UsageError("nothing varies: this would be one run", field="-s", fix=fix)
    if runs > most:
        counts = " x ".join(str(len(axis.values)) for axis in axes)
        seeded = f" with {seeds} seeds" if seeds > 1 else ""
        raise UsageError(
            f"{counts or 1} points{seeded} are {runs:,} runs, more than {most:,}",
            field="--max-runs",
            fix=f"sweep fewer values, or allow them: --max-runs {runs}"
            if runs <= possible
            else f"sweep fewer values: {possible:,} runs are possible at most",
        )


def swept_runs(load: Load, fixed: Sequence[str], axes: Sequence[Axis], seeds: int) -> Iterator[SweptRun]:
    """The runs: every combination of values, the last field changing first, each with every seed.

    Raises UsageError for two runs of one file, such as of the values 1e-6 and 0.000001; ConfigErrors.
    """
    seen: dict[bytes, str] = {}
    for values in product(*(axis.values for axis in axes)):
        settings = {axis.field: value for axis, value in zip(axes, values, strict=True)}
        chosen = (*fixed, *(f"{field}={value}" for field, value in settings.items()))
        config = load(chosen)
        digest = msgspec.json.encode(config, order="deterministic")
        if (other := seen.setdefault(digest, _shown(settings))) != _shown(settings):
            fix = "give values that differ"
            raise UsageError(f"{_shown(settings)} and {other} are the same experiment", field="-s", fix=fix)
        first = config.get(SEED, _FIRST_SEED)
        for number in range(seeds):
            seed = first + number
            # The seed may be in other fields as well, by a `${seed}`.
            own = load((*chosen, f"{SEED}={seed}")) if seeds > 1 else config
            yield SweptRun(settings, seed, own)


def _shown(settings: Mapping[str, str]) -> str:
    return " ".join(shlex.quote(f"{field}={value}") for field, value in settings.items())


def changes_between(config: Any, other: Any, path: tuple[str | int, ...] = ()) -> Iterator[FieldChange]:
    """The changes that make `other` of a config, each as deep in it as it goes."""
    if isinstance(config, dict) and isinstance(other, dict) and config.keys() <= other.keys():
        for key, value in other.items():
            if key in config:
                yield from changes_between(config[key], value, (*path, key))
            else:
                yield FieldChange((*path, key), value)
    elif isinstance(config, list) and isinstance(other, list) and len(config) == len(other):
        for index, (before, after) in enumerate(zip(config, other, strict=True)):
            yield from changes_between(before, after, (*path, index))
    elif type(config) is not type(other) or config != other:
        yield FieldChange(path, other)
