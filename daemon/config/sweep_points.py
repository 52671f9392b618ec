"""`sweep_points`: the runs of a sweep, from overrides with several values."""

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
"""Opening brackets."""
_CLOSING: Final = ")]}"
"""Closing brackets, in the order of `_OPENING`."""
_QUOTES: Final = "'\""
"""Quotes."""
SEED: Final = "seed"
"""Field of the seed."""
_FIRST_SEED: Final = 42
"""Seed of an experiment file without a seed."""


class Axis(NamedTuple):
    """A field varied by a sweep, with its values as written by the user."""

    field: str
    """Path of the field."""
    values: tuple[str, ...]
    """Values as written."""


class SweptRun(NamedTuple):
    """One run of a sweep: settings, seed, and the complete file."""

    settings: dict[str, str]
    """Values of the varied fields, by field."""
    seed: int
    """Seed of the run."""
    config: dict[str, Any]
    """The complete experiment file, as plain data."""


Load: TypeAlias = Callable[[tuple[str, ...]], dict[str, Any]]
"""Reads the experiment file with overrides. Raises ConfigErrors."""


def split_values(text: str) -> list[str]:
    """Splits the text of an override into values, at commas outside brackets and quotes."""
    texts = [""]
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
            texts.append("")
        else:
            texts[-1] += character
    return [text_part.strip() for text_part in texts]


def axes_of(overrides: Sequence[str]) -> tuple[list[str], list[Axis]]:
    """Splits overrides into fixed ones (one value each) and axes (several values). Raises UsageError for an empty or
    repeated value.
    """
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
            fix = "separate the values by single commas; quote a value that contains a comma"
            raise UsageError(f"{field} has an empty value: {text!r}", field=field, fix=fix)
        if twice := next((choice for choice in values if values.count(choice) > 1), None):
            raise UsageError(f"{field} has the value {twice} twice", field=field, fix="give each value once")
        if field in (axis.field for axis in axes):
            raise UsageError(f"{field} is given twice", field=field, fix=f"write -s {field}=A,B,C once")
        if field == SEED:
            fix = "write --seeds N, so that the table has mean and spread over seeds"
            raise UsageError("seed is not a field to sweep", field=field, fix=fix)
        axes.append(Axis(field, tuple(values)))
    return fixed, axes


def check_size(axes: Sequence[Axis], seeds: int, most: int, *, possible: int) -> None:
    """Raises UsageError unless the sweep has more than one run and at most `most`, a limit that an option can raise to
    `possible`.
    """
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
    """Yields the runs: every combination of values, the last field changing first, each with every seed.

    Raises UsageError for two runs with equal files, for example for the values 1e-6 and 0.000001; ConfigErrors.
    """
    settings_by_digest: dict[bytes, str] = {}
    for combination in product(*(axis.values for axis in axes)):
        settings = {axis.field: choice for axis, choice in zip(axes, combination, strict=True)}
        overrides = (*fixed, *(f"{field}={choice}" for field, choice in settings.items()))
        config = load(overrides)
        digest = msgspec.json.encode(config, order="deterministic")
        if (earlier := settings_by_digest.setdefault(digest, _settings_text(settings))) != _settings_text(settings):
            fix = "give values that differ"
            raise UsageError(f"{_settings_text(settings)} and {earlier} are the same experiment", field="-s", fix=fix)
        first = config.get(SEED, _FIRST_SEED)
        for number in range(seeds):
            seed = first + number
            # Other fields may depend on the seed through a `${seed}`.
            seeded_config = load((*overrides, f"{SEED}={seed}")) if seeds > 1 else config
            yield SweptRun(settings, seed, seeded_config)


def _settings_text(settings: Mapping[str, str]) -> str:
    """Returns settings as text: `FIELD=VALUE`, quoted for a shell."""
    return " ".join(shlex.quote(f"{field}={choice}") for field, choice in settings.items())


def changes_between(config: Any, changed: Any, path: tuple[str | int, ...] = ()) -> Iterator[FieldChange]:
    """Yields the changes leading from `config` to `changed`, each at the deepest differing field."""
    if isinstance(config, dict) and isinstance(changed, dict) and config.keys() <= changed.keys():
        for key, node in changed.items():
            if key in config:
                yield from changes_between(config[key], node, (*path, key))
            else:
                yield FieldChange((*path, key), node)
    elif isinstance(config, list) and isinstance(changed, list) and len(config) == len(changed):
        for index, (before, after) in enumerate(zip(config, changed, strict=True)):
            yield from changes_between(before, after, (*path, index))
    elif type(config) is not type(changed) or config != changed:
        yield FieldChange(path, changed)
