"""`rftd token`: the named tokens of a data folder, and the owner's, without a daemon."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, data_folder, names_folder, shared_options
from rftd.daemon.trust.asker import OWNER
from rftd.daemon.trust.quota import QUOTAS

if TYPE_CHECKING:
    from rftd.daemon.trust.quota import Quota
    from rftd.daemon.trust.token_file import TokenEntry, TokenFile

F = TypeVar("F", bound=Callable[..., Any])
"""Type of the decorated function."""
_LIMITS: Final = (
    ("--submissions", "submissions_per_hour", "Submissions within an hour"),
    ("--queued", "queued", "Experiments in the queue at once"),
    ("--streams", "streams", "Experiments watched at once"),
    ("--connections", "connections", "Requests under way at once"),
)
"""Option, field and help of each limit."""


class Lifetime(click.ParamType[float]):
    """A click type: seconds, from a number with m, h, d or w."""

    name = "lifetime"
    """Name of the type in usage errors."""
    _FACTORS: Final = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
    """Seconds of each unit of a lifetime."""
    _MOST_S: Final = 100 * 366 * 86400.0
    """Maximum lifetime in seconds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the lifetime in seconds; fails for zero, or for more than a hundred years."""
        match = re.fullmatch(r"(\d{1,6})([mhdw])", str(value).strip())
        lifetime_s = int(match[1]) * self._FACTORS[match[2]] if match is not None else 0.0
        if not 0 < lifetime_s <= self._MOST_S:
            self.fail(f"{value!r} is no lifetime: write 30m, 12h, 30d or 4w", param, ctx)
        return lifetime_s


def _limit_options(function: F) -> F:
    """Adds an option for each limit of a token."""
    for option, name, text in reversed(_LIMITS):
        number = click.IntRange(0, 1_000_000)
        function = click.option(option, name, type=number, metavar="N", help=f"{text}. Default: by role.")(function)
    return function


@click.group("token")
def token() -> None:
    """Manage who may use the daemon of --data: each token has a name, a role and limits.

    A running daemon notices changes by itself. Roles: `read` sees everything, `submit` also submits and commands its
    own experiments, `admin` commands everybody's. Only the owner may name any file, variable and URL.
    """


@token.command("add")
@click.argument("name")
@click.option("--role", type=click.Choice(list(QUOTAS)), required=True, help="Rights of the token.")
@click.option("--expires", "lifetime_s", type=Lifetime(), metavar="TIME", help="Lifetime: 12h, 30d. Default: no end.")
@_limit_options
@shared_options
@click.pass_obj
def add(settings: Settings, /, name: str, role: str, lifetime_s: float | None, **own: int | None) -> None:
    """Make a token for NAME and print it. It is shown once, and kept as a digest only."""
    from rftd.daemon.trust.quota import Quota
    from rftd.ops.clock import SystemClock

    now_ns = SystemClock().now_ns()
    expires_ns = None if lifetime_s is None else now_ns + int(lifetime_s * 1e9)
    token = _file(settings).add(name, role, created_ns=now_ns, expires_ns=expires_ns, quota=Quota(**own))
    _show_once(token, name, settings)


@token.command("ls")
@shared_options
@click.pass_obj
def ls(settings: Settings) -> None:
    """List the named tokens: role, expiry, limits."""
    from rftd.ops.clock import SystemClock, iso

    now_ns = SystemClock().now_ns()
    tokens = _file(settings).read()
    if emitted({"items": [_plain(token) for token in tokens]}, settings):
        return
    if not tokens:
        say("no named tokens: only the owner's token gives access", err=True)
        return
    from rftd.daemon.cli.output.table import console_of, table

    rows = [
        (
            token.name,
            token.role,
            "-" if token.expires_ns is None else iso(token.expires_ns)[:16] + " expired" * token.is_expired(now_ns),
            *(_limit_text(getattr(_effective_quota(token), name)) for _, name, _ in _LIMITS),
        )
        for token in tokens
    ]
    headers = ("NAME", "ROLE", "EXPIRES", "PER HOUR", "QUEUED", "STREAMS", "REQUESTS")
    console_of(settings).print(table(headers, rows, right=headers[3:]))


@token.command("rm")
@click.argument("name")
@shared_options
@click.pass_obj
def rm(settings: Settings, name: str) -> None:
    """Remove the token of NAME: requests with it, and browsers that it signed in, are refused from now on."""
    _file(settings).remove(name)
    if not emitted({"removed": name}, settings):
        say(f"removed {name}")


@token.command("rotate")
@click.argument("name")
@shared_options
@click.pass_obj
def rotate(settings: Settings, name: str) -> None:
    """Replace the token of NAME, or of `owner`, and print the new one; the old one is refused from now on."""
    file = _file(settings)
    if name != OWNER.name:
        _show_once(file.rotate(name), name, settings)
        return
    from rftd.daemon.trust.user_state import UserState

    token = file.rotate_owner()
    UserState(os.environ).renew(str(file.path.parent), token)
    # Not shown: the owner's programs read it from its file, and a terminal's history would be one more copy.
    if not emitted({"name": name, "file": str(file.owner_path)}, settings):
        say(f"the owner's new token is in {file.owner_path}")


def _file(settings: Settings) -> TokenFile:
    """Returns the tokens of the data folder. Raises NotFoundError without one, and UsageError for another user's."""
    from rftd.daemon.serve.data_folder import DataFolder
    from rftd.daemon.trust.token_file import TokenFile
    from rftd.ops.errors import NotFoundError, UsageError

    root = DataFolder(Path(data_folder(settings))).root
    if names_folder(settings, os.environ):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not root.is_dir():
        raise NotFoundError(
            "there is no data folder", where=str(root), fix="name the daemon's: --data DIR, or start rftd serve here"
        )
    if root.stat().st_uid != os.geteuid():
        raise UsageError("the data folder is another user's", where=str(root), fix="work as the daemon's user")
    return TokenFile(root)


def _show_once(token: str, name: str, settings: Settings) -> None:
    """Prints a new token, which is never shown again."""
    if emitted({"name": name, "token": token}, settings):
        return
    click.echo(token)
    say(f"this token of {name} is not shown again: use it as RFTD_TOKEN or as a bearer token", err=True)


def _effective_quota(entry: TokenEntry) -> Quota:
    """Returns the limits of a token, with those of its role where it sets none."""
    return entry.quota.within(QUOTAS[entry.role])


def _limit_text(limit: int | None) -> str:
    """Returns a limit; `-` for none."""
    return "-" if limit is None else str(limit)


def _plain(entry: TokenEntry) -> dict[str, Any]:
    """Returns the entry for programs, without its digest."""
    from rftd.ops.clock import iso

    return {
        "name": entry.name,
        "role": entry.role,
        "created": iso(entry.created_ns),
        "expires": None if entry.expires_ns is None else iso(entry.expires_ns),
        **{name: getattr(_effective_quota(entry), name) for _, name, _ in _LIMITS},
    }
