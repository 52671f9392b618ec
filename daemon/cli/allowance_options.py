"""The options of `rftd serve` allowing submitters other than the daemon's owner to use files, variables, addresses and
code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from rftd.daemon.cli.daemon_file import HostsByName
from rftd.daemon.cli.option_group import option_group

if TYPE_CHECKING:
    from rftd.daemon.trust.allowances import Allowances

_OPTIONS: Final = (
    click.option(
        "--roots",
        "roots",
        multiple=True,
        metavar="DIR",
        envvar="RFTD_ROOTS",
        help="Folder below which others may name files. Default: files in --data. Repeatable, like all that follow.",
    ),
    click.option(
        "--allow-env",
        multiple=True,
        metavar="PATTERN",
        help="Variables that others may set in explorer.env_vars, such as MYLIB_*.",
    ),
    click.option(
        "--secrets",
        type=HostsByName(),
        multiple=True,
        metavar="NAME=HOST",
        help="Variable of the workers that others may name, and the hosts that get its value; * for any.",
    ),
    click.option(
        "--allow-urls",
        multiple=True,
        metavar="HOST[:PORT]",
        help="Address of this machine or its networks that others may name.",
    ),
    click.option(
        "--allow-code",
        multiple=True,
        metavar="DIR|CLASS",
        help="Model folder whose own code others may run with trust_remote_code, or class path of workflows.",
    ),
    click.option(
        "--allow-args",
        multiple=True,
        metavar="PATTERN",
        help="Arguments of engines that others may set, or PLUGIN.ARGUMENT of a third party's part.",
    ),
    click.option(
        "--allow-commands",
        multiple=True,
        metavar="PATTERN",
        help="Command of agents that others may run, as one line.",
    ),
    click.option(
        "--allow-sources",
        multiple=True,
        metavar="SHA256",
        help="Source text of a reward that others may submit; it runs in a sandbox. * for any.",
    ),
)
"""The options in the order of the help."""


def _allowances_of_options(
    roots: tuple[str, ...],
    allow_env: tuple[str, ...],
    secrets: tuple[tuple[str, tuple[str, ...]], ...],
    allow_urls: tuple[str, ...],
    allow_code: tuple[str, ...],
    allow_args: tuple[str, ...],
    allow_commands: tuple[str, ...],
    allow_sources: tuple[str, ...],
) -> Allowances:
    """Returns the options' values as allowances, with the defaults safe for everybody; folders are made absolute."""
    from rftd.daemon.trust.allowances import SAFE_ARGS, SAFE_ENV, Allowances, is_class_pattern
    from rftd.ops.paths import absolute_path

    return Allowances(
        roots=tuple(absolute_path(root) for root in roots),
        allow_env=(*SAFE_ENV, *allow_env),
        secrets=dict(secrets),
        allow_urls=allow_urls,
        allow_code=tuple(line if is_class_pattern(line) else absolute_path(line) for line in allow_code),
        allow_args=(*SAFE_ARGS, *allow_args),
        allow_commands=allow_commands,
        allow_sources=allow_sources,
    )


allowance_options: Final = option_group("allowances", _OPTIONS, _allowances_of_options)
"""Decorator adding the options to `rftd serve`; the command receives them as its parameter `allowances`."""
