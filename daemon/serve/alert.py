"""`Alert`: one alert with the figures around it; `AlertsFile`: what was seen and what waits, over restarts."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rftd.daemon.http.views.alerts import AlertKind, AlertLine
from rftd.daemon.run.why.wait import Wait
from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.durable import write_durable
from rftd.storage.queries.experiments import ExperimentSummary
from rftd.storage.queries.signal import SignalRow
from rftd.storage.queries.steps import StepRow


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One alert, with the figures around it."""

    id: str
    """Id of the alert, sent as its `Idempotency-Key` too: after a crash an alert may come twice."""
    kind: AlertKind
    text: str
    """The alert in one sentence, for people and for receivers of chat messages."""
    time_ns: int
    experiment: ExperimentSummary | None = None
    """The experiment concerned; null for the daemon's disk."""
    signal: SignalRow | None = None
    steps: list[StepRow] = []
    """The newest steps with all metrics."""
    waits: list[Wait] = []
    dropped: int = 0
    """Number of earlier alerts dropped because the receiver did not answer."""


class AlertsState(msgspec.Struct, kw_only=True):
    """Everything of alerts that outlives a daemon."""

    signals: dict[str, str] = {}
    """Cause of the lost signal of each experiment that had not ended at the last look; empty during training."""
    ended_ns: int | None = None
    """Newest end of an experiment at the last look; None before the first one."""
    stalled: set[str] = set()
    """Experiments told to be stalled."""
    waiting: dict[str, list[Alert]] = {}
    """Alerts not taken yet, by the digest of the receiver's address, which is a secret."""
    dropped: dict[str, int] = {}
    newest: list[AlertLine] = []
    """The alerts raised last, the newest first."""


class AlertsFile:
    """The file alerts.json of a daemon's folder; without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def read(self) -> AlertsState | None:
        """Returns the state written last; None without a readable one. Blocks."""
        try:
            content = b"" if self._path is None else self._path.read_bytes()
            return json_decoder(AlertsState).decode(content) if content else None
        except (OSError, *UNREADABLE):  # absent, or of another release: the next look begins anew
            return None

    def write(self, content: bytes) -> None:
        """Replaces the state by an encoded one. Blocks."""
        if self._path is not None:
            write_durable(self._path, content)
