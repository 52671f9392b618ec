"""`EnvironmentAddress`: an environment by kind, name and arguments, written in place of a taskset's path."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

import msgspec

from rftd.ops.errors import ConfigError

COMMAND: Final = "command"
"""Kind of environments served by a command of the experiment file."""
PACKAGES: Final = ("gymnasium", "openenv", "reasoning_gym", "textworld", "verifiers")
"""Kinds of environments with a built-in server, by the package's name."""
SERVER: Final = "server.py"
"""Name of the built-in server in the folder of a command."""
_KINDS: Final = (*PACKAGES, COMMAND)
"""Kinds of environments."""
_ADDRESS: Final = re.compile(r"(?P<kind>[a-z_]+)://(?P<name>[^?#\s]+)(?:\?(?P<query>[^#\s]*))?")
"""Form of an address."""
_PYTHON: Final = "python"
"""Argument naming another Python."""
_FIX: Final = f"write KIND://NAME or KIND://NAME?KEY=VALUE&KEY=VALUE, with one of the kinds {', '.join(_KINDS)}"
"""Fix for an invalid address."""


class EnvironmentAddress(msgspec.Struct, frozen=True):
    """An environment's kind, name, arguments, and the Python with the environment's package."""

    kind: str
    """Kind of the environment."""
    name: str
    """Name of the environment."""
    arguments: tuple[str, ...] = ()
    """Arguments of the environment, as `KEY=VALUE`."""
    python: str = ""
    """Path of a Python; empty: the Python of rftd."""

    def words(self, command: Sequence[str] = ()) -> tuple[str, ...]:
        """Returns the command line of the server; `command` is the command of the experiment file, if any."""
        begin = tuple(command) or (self.python or sys.executable, SERVER, self.kind)
        return (*begin, self.name, *self.arguments)

    def line(self, command: Sequence[str] = ()) -> str:
        """Returns the command line compared with the patterns of `allow_commands`."""
        begin = tuple(command) or (self.python or _PYTHON, self.kind)
        return shlex.join((*begin, self.name, *self.arguments))

    def check(self, command: Sequence[str]) -> None:
        """Raises ConfigError for a command missing, or without use."""
        if (self.kind == COMMAND) != bool(command):
            problem = "is required by an environment of kind command" if not command else f"has no use for {self.kind}"
            fix = "write the program and its arguments as a list" if not command else "leave it out"
            raise ConfigError(f"environment_command {problem}", field="environment_command", fix=fix)


def names_environment(path: object) -> bool:
    """True for a text beginning as an environment's address."""
    return isinstance(path, str) and path.partition("://")[0] in _KINDS and "://" in path


def environment_address(text: str) -> EnvironmentAddress:
    """Parses an address such as `reasoning_gym://leg_counting?size=100`. Raises ConfigError."""
    match = _ADDRESS.fullmatch(text)
    if match is None or match["kind"] not in _KINDS:
        raise ConfigError(f"{text!r} is not the address of an environment", field="environment", fix=_FIX)
    python = ""
    arguments: list[str] = []
    for pair in filter(None, (match["query"] or "").split("&")):
        key, equals, setting = (unquote(word) for word in pair.partition("="))
        if not equals or not key.isidentifier():
            raise ConfigError(f"{pair!r} is no KEY=VALUE in the address {text!r}", field="environment", fix=_FIX)
        if key == _PYTHON and match["kind"] != COMMAND:
            python = setting
            if not python.startswith("/"):
                problem = f"python={python} in the address of an environment is no absolute path"
                raise ConfigError(problem, field="environment", fix="write the path from / on")
        else:
            arguments.append(f"{key}={setting}")
    name = unquote(match["name"])
    if "\0" in text or "\0" in name or any("\0" in word for word in (python, *arguments)):
        raise ConfigError(f"{text!r} has a NUL", field="environment", fix=_FIX)
    return EnvironmentAddress(match["kind"], name, tuple(sorted(arguments)), python)
