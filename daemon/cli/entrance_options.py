"""The options of access control: `--allow-host`, `--tls-cert`, ..., `--unsafe-allow-unauthenticated`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rftd.daemon.cli.option_group import option_group

if TYPE_CHECKING:
    from rftd.daemon.serve.entrance import EntranceOptions

UNSAFE: Final = "--unsafe-allow-unauthenticated"
"""Option of `rftd serve` that treats everybody who reaches the port as the owner."""


class HostName(click.ParamType[str]):
    """A host name without a port."""

    name = "host name"
    """Name of the type in usage errors."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the name in lower case; fails for a text with scheme, port or path."""
        labels = str(value).split(".")
        if len(str(value)) > 253 or not all(re.fullmatch(r"[A-Za-z0-9_-]{1,63}", label) for label in labels):
            self.fail(f"{value!r} is no host name: write it without scheme, port and path", param, ctx)
        return str(value).lower()


_OPTIONS: Final = (
    click.option(
        "--allow-host",
        "allow_hosts",
        type=HostName(),
        multiple=True,
        metavar="NAME",
        help="Host name by which clients reach this daemon, beside localhost, addresses and those of the "
        "certificate. Repeatable.",
    ),
    click.option(
        "--tls-cert",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        envvar="RFTD_TLS_CERT",
        help="Certificate chain in PEM form: HTTPS instead of HTTP. Read anew when the file changes.",
    ),
    click.option(
        "--tls-key",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        envvar="RFTD_TLS_KEY",
        help="Private key of the certificate.",
    ),
    click.option(
        "--tls-terminated-elsewhere",
        is_flag=True,
        envvar="RFTD_TLS_TERMINATED_ELSEWHERE",
        help="Listen on any address without TLS: a proxy, or a network that nobody reads, is in front.",
    ),
    click.option(
        UNSAFE,
        is_flag=True,
        help="Treat everybody who reaches the port as the owner: anybody can then run commands as this user.",
    ),
)
"""Options of access control, in the order of the help."""


def _entrance(
    allow_hosts: tuple[str, ...],
    tls_cert: str | None,
    tls_key: str | None,
    tls_terminated_elsewhere: bool,
    unsafe_allow_unauthenticated: bool,
) -> EntranceOptions:
    """Returns the options of the access control. Raises UsageError for a certificate without its key."""
    from rftd.daemon.serve.entrance import EntranceOptions
    from rftd.ops.errors import UsageError
    from rftd.ops.tls import ServerTls

    if (tls_cert is None) != (tls_key is None):
        missing = "--tls-key" if tls_key is None else "--tls-cert"
        raise UsageError("a certificate needs its key, and a key its certificate", field=missing, fix="give both")
    tls = ServerTls(Path(tls_cert), Path(tls_key)) if tls_cert is not None and tls_key is not None else None
    return EntranceOptions(
        token=os.environ.get("RFTD_TOKEN") or None,
        allow_hosts=allow_hosts,
        tls=tls,
        tls_terminated_elsewhere=tls_terminated_elsewhere,
        unauthenticated=unsafe_allow_unauthenticated,
    )


entrance_options: Final = option_group("door", _OPTIONS, _entrance)
"""Adds the options to `rftd serve`, passed as `door`."""
