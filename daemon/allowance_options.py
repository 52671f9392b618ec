"""The options of `rftd serve` that say what others than its owner may name in a submission."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from rftd.daemon.daemon_file import HostsByName

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
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
        metavar="DIR",
        help="Model folder whose own code others may run with trust_remote_code.",
    ),
    click.option(
        "--allow-args",
        multiple=True,
        metavar="PATTERN",
        help="Arguments of engines that others may set, or PLUGIN.ARGUMENT of a third party's part.",
    ),
)


def allowance_options(function: F) -> F:
    """Adds the options; the verb gets `allowances`."""

    @wraps(function)
    def allowed(
        *args: Any,
        roots: tuple[str, ...],
        allow_env: tuple[str, ...],
        secrets: tuple[tuple[str, tuple[str, ...]], ...],
        allow_urls: tuple[str, ...],
        allow_code: tuple[str, ...],
        allow_args: tuple[str, ...],
        **kwargs: Any,
    ) -> Any:
        from rftd.daemon.trust.allowances import SAFE_ARGS, SAFE_ENV, Allowances
        from rftd.ops.paths import absolute_path

        allowances = Allowances(
            roots=tuple(absolute_path(root) for root in roots),
            allow_env=(*SAFE_ENV, *allow_env),
            secrets=dict(secrets),
            allow_urls=allow_urls,
            allow_code=tuple(absolute_path(folder) for folder in allow_code),
            allow_args=(*SAFE_ARGS, *allow_args),
        )
        return function(*args, allowances=allowances, **kwargs)

    wrapped: Any = allowed
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]
