"""The daemon's own configuration file: the options of `rftd serve` and `rftd worker`, as YAML."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Final

import click
import yaml

from rftd.ops.errors import ConfigError

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
"""Form of an environment variable's name."""
_TYPED_ONLY: Final = ("data", "unsafe_allow_unauthenticated")
"""Options not allowed in a file: the data folder, and the option not to be spread by copying a file."""
_NULL: Final = "tag:yaml.org,2002:null"
"""YAML tag of an empty value."""


def take_daemon_file(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Makes the file's entries the defaults of the command's options; the command line and the environment take
    precedence.

    Raises ConfigError, with the line, for an unknown option.
    """
    if value is None:
        return
    options_by_name: dict[str, click.Option] = {}
    for option in ctx.command.params:
        if isinstance(option, click.Option) and option.name and option.name not in {param.name, *_TYPED_ONLY}:
            spelled = max(option.opts, key=len).removeprefix("--").replace("-", "_")
            options_by_name[spelled] = option
    ctx.default_map = _read(Path(value), options_by_name)


config_option = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=take_daemon_file,
    envvar="RFTD_CONFIG",
    help="YAML file with these options; the command line and the environment take precedence.",
)
"""Adds `--config FILE`, whose entries become defaults of the other options."""


def checked_postgres_url(url: str) -> str:
    """Returns a PostgreSQL URL. Raises ConfigError, without repeating the URL (possibly with a password)."""
    if url.partition("://")[0].partition("+")[0] in ("postgresql", "postgres"):
        return url
    raise ConfigError("this is not a PostgreSQL URL", field="--postgres", fix="postgresql://USER@HOST:5432/DATABASE")


class HostsByName(click.ParamType[tuple[str, tuple[str, ...]]]):
    """A click type: `NAME=HOST,HOST`; in the file also a mapping of names to lists of hosts."""

    name = "hosts by name"
    """Name of the type in usage errors."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[str, ...]]:
        """Returns name and hosts; fails for a name that is no variable's, and for a text without `=` or host."""
        name, equals, hosts = str(value).partition("=")
        named = tuple(host.strip() for host in hosts.split(",") if host.strip())
        if not _VARIABLE.fullmatch(name) or not equals or not named:
            self.fail(f"{value!r} names no variable and no host: write NAME=HOST", param, ctx)
        return name, named


def _named_hosts(name: yaml.Node, hosts: yaml.Node, where: str) -> yaml.ScalarNode:
    """Returns an entry of a mapping of hosts in its command-line form."""
    words = hosts.value if isinstance(hosts, yaml.SequenceNode) else [hosts]
    if not isinstance(name, yaml.ScalarNode) or not all(isinstance(word, yaml.ScalarNode) for word in words):
        raise ConfigError("is not a list of hosts", where=where, field="secrets", fix="write NAME: [HOST]")
    return yaml.ScalarNode("tag:yaml.org,2002:str", f"{name.value}={','.join(word.value for word in words)}")


def _read(path: Path, options_by_name: dict[str, click.Option]) -> dict[str, str | list[str]]:
    """Returns the options' texts as written: parsing is left to the option's own type, as on the command line."""
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(path), fix="write KEY: VALUE lines") from error
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError("is not a mapping of options", where=str(path), fix="write KEY: VALUE lines")
    texts_by_option: dict[str, str | list[str]] = {}
    for key, node_of_option in node.value:
        name = str(key.value)
        where = f"{path}:{key.start_mark.line + 1}"
        if name not in options_by_name:
            near = difflib.get_close_matches(name, options_by_name, n=1)
            fix = f"did you mean {near[0]!r}?" if near else f"one of: {', '.join(sorted(options_by_name))}"
            raise ConfigError("no such option", where=where, field=name, fix=fix)
        option = options_by_name[name]
        assert option.name is not None
        if option.name in texts_by_option:
            raise ConfigError("stands there twice", where=where, field=name, fix="remove one of the two")
        several = option.multiple and isinstance(node_of_option, yaml.SequenceNode)
        words = node_of_option.value if several else [node_of_option]
        if isinstance(node_of_option, yaml.MappingNode) and isinstance(option.type, HostsByName):
            words = [_named_hosts(name, hosts, where) for name, hosts in node_of_option.value]
        if not all(isinstance(word, yaml.ScalarNode) and word.tag != _NULL for word in words):
            raise ConfigError("takes one value", where=where, field=name, fix="write KEY: VALUE")
        texts = [str(word.value) for word in words]
        texts_by_option[option.name] = texts if option.multiple else texts[0]
    return texts_by_option
