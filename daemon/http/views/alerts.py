"""The alerts of the daemon: the newest ones, and the receivers with the alerts that wait for them."""

from __future__ import annotations

from typing import Literal

import msgspec

AlertKind = Literal["signal_lost", "signal_regained", "failed", "completed", "disk", "stalled"]
"""Cause of an alert."""


class AlertLine(msgspec.Struct, frozen=True, kw_only=True):
    """A raised alert, without the figures sent to receivers."""

    kind: AlertKind
    """Cause of the alert."""
    text: str
    """The alert in one sentence."""
    time_ns: int
    """Time of the alert, Unix time in nanoseconds."""
    experiment: str | None = None
    """Id of the experiment concerned; null for the daemon's disk."""


class ReceiverView(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver of alerts; the path of a webhook is a secret, and so not shown."""

    host: str
    """Host of the receiver's address."""
    waiting: int
    """Number of alerts not yet taken by the receiver."""
    dropped: int
    """Number of alerts dropped since the last one taken, because the receiver did not answer."""


class AlertList(msgspec.Struct, frozen=True, kw_only=True):
    """The newest alerts, and their receivers."""

    receivers: list[ReceiverView]
    """Receivers of the daemon's configuration; without any, no alert is raised."""
    items: list[AlertLine]
    """The newest alerts, the newest first; kept over restarts of the daemon."""
