"""The daemon's own configuration file: the options of `rftd serve` and `rftd worker`, as YAML."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import click
import yaml

from rftd.ops.errors import ConfigError


def take_daemon_file(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Makes the file's values the defaults of the command's options; the command line and the environment win.

    Raises ConfigError, with the line, for what is no option of the command.
    """
    if value is None:
        return
    known = {}
    for option in ctx.command.params:
        if isinstance(option, click.Option) and option.name and option.name != param.name and option.name != "data":
            spelled = max(option.opts, key=len).removeprefix("--").replace("-", "_")
            known[spelled] = option.name
    ctx.default_map = {known[key]: given for key, given in _read(Path(value), known).items()}


def checked_postgres_url(url: str) -> str:
    """The URL, if it is one of PostgreSQL. Raises ConfigError; the URL is not repeated, it may hold a password."""
    if url.partition("://")[0].partition("+")[0] in ("postgresql", "postgres"):
        return url
    raise ConfigError("this is no URL of PostgreSQL", field="--postgres", fix="postgresql://USER@HOST:5432/DATABASE")


def _read(path: Path, known: dict[str, str]) -> dict[str, Any]:
    try:
        # Read twice: the nodes have the lines, the safe loader has the values.
        node = yaml.compose(path.read_text(), Loader=yaml.SafeLoader)
        values = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(path), fix="write KEY: VALUE lines") from error
    if values is None:
        return {}
    if not isinstance(values, dict) or not isinstance(node, yaml.MappingNode):
        raise ConfigError("is no mapping of options", where=str(path), fix="write KEY: VALUE lines")
    for key, given in node.value:
        name = str(key.value)
        where = f"{path}:{key.start_mark.line + 1}"
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            fix = f"did you mean {near[0]!r}?" if near else f"one of: {', '.join(sorted(known))}"
            raise ConfigError("no such option", where=where, field=name, fix=fix)
        if not isinstance(given, yaml.ScalarNode):
            raise ConfigError("takes one value", where=where, field=name, fix="write KEY: VALUE")
    return {str(key): str(value) for key, value in values.items()}
