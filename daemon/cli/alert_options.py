"""The options of alerts: `--alerts-to`, `--stalled-after`."""

from __future__ import annotations

from typing import Final, NamedTuple

import click

from rftd.daemon.cli.option_group import option_group
from rftd.daemon.cli.settings import Duration


class AlertOptions(NamedTuple):
    """The receivers of alerts, and the age of a wait worth an alert."""

    urls: tuple[str, ...] = ()
    """Addresses of receivers, checked; an address may be a secret: never printed."""
    stalled_after_s: float = 300.0
    """Age in seconds of a wait that only a person can end, before the alert."""


_OPTIONS: Final = (
    click.option(
        "--alerts-to",
        multiple=True,
        metavar="URL",
        envvar="RFTD_ALERTS_TO",
        help="Post alerts (signal lost, failed, completed, stalled, disk) as JSON to this address. Repeatable.",
    ),
    click.option(
        "--stalled-after",
        type=Duration(),
        default="5m",
        show_default=True,
        metavar="TIME",
        help="Alert of a run that has waited for a person this long.",
    ),
)
"""Options of alerts, in the order of the help."""


def _alerts(alerts_to: tuple[str, ...], stalled_after: float) -> AlertOptions:
    """Returns the options. Raises UsageError for an impossible address."""
    from rftd.daemon.serve.alerts import checked_alert_url

    return AlertOptions(tuple(checked_alert_url(url) for url in alerts_to), stalled_after)


alert_options: Final = option_group("alerts", _OPTIONS, _alerts)
"""Adds the options to `rftd serve`, passed as `alerts`."""
