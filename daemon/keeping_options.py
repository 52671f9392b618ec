"""The options that say how long a daemon keeps what nobody trains any more: `--payloads` and `--archive-after`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rftd.daemon.settings import Duration

if TYPE_CHECKING:
    from rftd.daemon.supervisor.payloads import Keeping

F = TypeVar("F", bound=Callable[..., Any])


def keeping_options(function: F) -> F:
    """Adds the options to `rftd serve`, which is given `keeping`."""

    @functools.wraps(function)
    def given_keeping(*args: Any, payloads: str, archive_after: float | None, **kwargs: Any) -> Any:
        return function(*args, keeping=_keeping(payloads, archive_after), **kwargs)

    options = (
        click.option(
            "--payloads",
            type=click.Choice(["always", "until-ended", "until-trained"]),
            default="always",
            show_default=True,
            envvar="RFTD_PAYLOADS",
            help="How long the embedded log keeps the tokens of experiences, which replay and fork need.",
        ),
        click.option(
            "--archive-after",
            type=Duration(),
            metavar="TIME",
            envvar="RFTD_ARCHIVE_AFTER",
            help="Archive experiments that ended this long ago, such as 30d, in --data/archives.  [default: never]",
        ),
    )
    wrapped: Any = given_keeping
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def _keeping(payloads: str, archive_after_s: float | None) -> Keeping:
    from rftd.daemon.supervisor.payloads import Keep, Keeping

    return Keeping(payloads=Keep(payloads), archive_after_s=archive_after_s)
