"""`Settings`: the options shared by every verb, before or after the verb."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
"""Type of the decorated function."""

FORMATS: Final = ("table", "json", "jsonl", "yaml")
"""Output formats of most verbs."""


ANSWER_TIMEOUT_S: Final = 30.0
"""Default of the longest wait for an answer, in seconds."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options shared by every verb, as given on the command line."""

    server: str | None = None
    """Address of the daemon given by `--server`; None: `RFTD_SERVER`, else the daemon of the data folder."""
    data: str | None = None
    """The data folder; None: `RFTD_DATA`, else `.rftd` here."""
    output: str = "table"
    """Output format: `table` for people, or one for programs."""
    color: bool = True
    """True if output may have colours."""
    verbosity: int = 0
    """-1 quiet, 0 normal, 1 and up more."""
    timeout_s: float | None = None
    """Longest wait for an answer of the daemon in seconds, by `--timeout`; None: 30 s, and for a command as long as the
    daemon works on it.
    """

    @property
    def answer_timeout_s(self) -> float:
        """Longest wait in seconds for any answer except that of a command."""
        return ANSWER_TIMEOUT_S if self.timeout_s is None else self.timeout_s

    @property
    def machine_readable(self) -> bool:
        """True if standard output is for a program: any format except the table."""
        return self.output != "table"


class Duration(click.ParamType[float]):
    """A click type: seconds, or a number with ms, s, m, h or d."""

    name = "duration"
    """Name of the type in usage errors."""
    _FACTORS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
    """Seconds of each unit of a duration."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the duration in seconds; fails for another text."""
        if isinstance(value, int | float):
            return float(value)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", str(value).strip())
        duration_s = float(match[1]) * self._FACTORS[match[2] or ""] if match is not None else math.inf
        if math.isinf(duration_s):
            self.fail(f"{value!r} is no duration: write 30s, 500ms, 2m, 1h or 30d", param, ctx)
        return duration_s


class Size(click.ParamType[int]):
    """A click type: bytes, or a number with kB, MB, GB, TB, KiB, MiB, GiB or TiB."""

    name = "size"
    """Name of the type in usage errors."""
    _FACTORS: Final = {"": 1, "B": 1} | {
        f"{letter}{suffix}": base**power
        for power, letter in enumerate("KMGT", start=1)
        for suffix, base in (("B", 1000), ("IB", 1024))
    }
    """Bytes of each unit, in upper case."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns the size in bytes; fails for another text."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(value).strip())
        factor = self._FACTORS.get(match[2].upper()) if match is not None else None
        size = float(match[1]) * factor if match is not None and factor is not None else math.inf
        if math.isinf(size):
            self.fail(f"{value!r} is no size: write 500MB, 2GiB or a number of bytes", param, ctx)
        return int(size)


def current(ctx: click.Context) -> Settings:
    """Returns the settings collected so far by this command or by an enclosing command."""
    return ctx.obj if isinstance(ctx.obj, Settings) else Settings(color="NO_COLOR" not in os.environ)


def data_folder(settings: Settings, environ: Mapping[str, str] | None = None) -> str:
    """Returns the daemon's folder: `--data`, `RFTD_DATA`, else `.rftd` here."""
    environ = os.environ if environ is None else environ
    return settings.data or environ.get("RFTD_DATA") or ".rftd"


def names_folder(settings: Settings, environ: Mapping[str, str]) -> bool:
    """True if `--data` or `RFTD_DATA` names the daemon's folder."""
    return bool(settings.data or environ.get("RFTD_DATA"))


def postgres_option(function: F) -> F:
    """Adds `--postgres` to a verb working on the state database without a daemon."""
    text = "PostgreSQL database that holds the tables: postgresql://..."
    return click.option("--postgres", metavar="URL", envvar="RFTD_POSTGRES", help=text)(function)


def shared_options(function: F) -> F:
    """Adds the shared options to a group or a verb; the verb receives the settings by `click.pass_obj`."""
    return options_with()(function)


def options_of_a_file(function: F) -> F:
    """Adds the shared options to a verb writing a file: `-o FILE`, passed as `file`, in place of an output format."""
    file = click.option("-o", "file", type=click.Path(dir_okay=False), required=True, metavar="FILE", help="New file.")
    for option in reversed((*_DAEMON_OPTIONS, file, *_OUTPUT_OPTIONS)):
        function = option(function)
    return function


def options_with(*formats: str) -> Callable[[F], F]:
    """Adds the shared options, with additional output `formats`."""

    def add(function: F) -> F:
        for option in reversed((*_DAEMON_OPTIONS, _output_option(*FORMATS, *formats), *_OUTPUT_OPTIONS)):
            function = option(function)
        return function

    return add


def _output_option(*formats: str) -> Callable[[F], F]:
    """Returns the option `--output` with these formats."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        expose_value=False,
        callback=_field_setter("output"),
        help="Output format.",
    )


def _field_setter(field: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Returns a click callback setting a field of the settings to the option's value, if one is given."""

    def change(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        settings = current(ctx)
        # An option not given after the verb must not undo one given before it.
        if value is not None and value is not False and value != 0:
            settings = replace(settings, **{field: value})
        ctx.obj = settings

    return change


def _set_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Sets the output format to JSON, as the click callback of `--json`."""
    if value:
        ctx.obj = replace(current(ctx), output="json")


def _set_no_color(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Turns colours off, as the click callback of `--no-color`."""
    if value:
        ctx.obj = replace(current(ctx), color=False)


def _set_quiet(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Sets the verbosity to -1, as the click callback of `--quiet`."""
    if value:
        ctx.obj = replace(current(ctx), verbosity=-1)


_DAEMON_OPTIONS: Final = (
    click.option(
        "--server",
        metavar="URL",
        expose_value=False,
        callback=_field_setter("server"),
        help="Address of the daemon. Default: RFTD_SERVER, else the daemon of --data.",
    ),
    click.option(
        "--data",
        metavar="DIR",
        expose_value=False,
        callback=_field_setter("data"),
        help="Folder of the daemon. Default: RFTD_DATA, else ./.rftd.",
    ),
)
"""Shared options naming the daemon."""
_OUTPUT_OPTIONS: Final = (
    click.option("--json", is_flag=True, expose_value=False, callback=_set_json, help="Same as -o json."),
    click.option("--no-color", is_flag=True, expose_value=False, callback=_set_no_color, help="Disable colours."),
    click.option("-q", "--quiet", is_flag=True, expose_value=False, callback=_set_quiet, help="Print only the result."),
    click.option(
        "-v", "--verbose", count=True, expose_value=False, callback=_field_setter("verbosity"), help="Print more."
    ),
    click.option(
        "--timeout",
        type=Duration(),
        metavar="TIME",
        expose_value=False,
        callback=_field_setter("timeout_s"),
        help="Longest wait for an answer of the daemon. Default: 30s, longer for a command.",
    ),
)
"""Shared options of the output, besides `--output`."""
