"""The options for dropping payloads and archiving files after training: `--payloads`, ..., `--archive-after`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from rftd.daemon.cli.option_group import option_group
from rftd.daemon.cli.settings import Duration, Size
from rftd.ops.errors import UsageError

if TYPE_CHECKING:
    from rftd.daemon.serve.keeping import Keeping

_OPTIONS: Final = (
    click.option(
        "--payloads",
        type=click.Choice(["always", "until-ended", "until-trained"]),
        default="always",
        show_default=True,
        envvar="RFTD_PAYLOADS",
        help="How long the embedded log keeps the tokens of experiences, which replay and fork need.",
    ),
    click.option(
        "--drop-payloads-after",
        type=Duration(),
        metavar="TIME",
        envvar="RFTD_DROP_PAYLOADS_AFTER",
        help="Drop the tokens of experiments that ended this long ago, such as 30d.  [default: never]",
    ),
    click.option(
        "--drop-payloads-above",
        type=Size(),
        metavar="SIZE",
        envvar="RFTD_DROP_PAYLOADS_ABOVE",
        help="Drop the tokens of what ended first while the embedded log takes more, such as 50GiB.  [default: never]",
    ),
    click.option(
        "--archive-after",
        type=Duration(),
        metavar="TIME",
        envvar="RFTD_ARCHIVE_AFTER",
        help="Archive experiments that ended this long ago, such as 30d, in --data/archives.  [default: never]",
    ),
)
"""Options for dropping payloads and archiving files, in the order of the help."""


def _keeping(
    payloads: str,
    drop_payloads_after: float | None,
    drop_payloads_above: int | None,
    archive_after: float | None,
) -> Keeping:
    """Returns the rules. Raises UsageError if one rule leaves another without effect."""
    from rftd.daemon.serve.keeping import Keep, Keeping

    keep = Keep(payloads)
    later = {"--drop-payloads-after": drop_payloads_after, "--drop-payloads-above": drop_payloads_above}
    for option, limit in later.items():
        if keep is not Keep.ALWAYS and limit is not None:
            raise UsageError(
                f"leaves nothing to drop later: with --payloads {payloads} tokens go when an experiment ends",
                field=option,
                fix="leave one of the two out",
            )
    return Keeping(
        payloads=keep,
        drop_payloads_after_s=drop_payloads_after,
        drop_payloads_above_bytes=drop_payloads_above,
        archive_after_s=archive_after,
    )


keeping_options: Final = option_group("keeping", _OPTIONS, _keeping)
"""Adds the options to `rftd serve`, passed as `keeping`."""
