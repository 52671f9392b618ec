"""`Alerts`: what a person should know of runs and disks, posted as JSON to URLs of the daemon's own configuration."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from rftd.daemon.http.views.wire import encode
from rftd.daemon.run.why.wait import Wait, sentence_of
from rftd.ops.clock import Clock
from rftd.ops.errors import NotFoundError, UsageError
from rftd.ops.words import Level
from rftd.storage.queries.experiments import ExperimentSummary, get_summary
from rftd.storage.queries.live import LiveRow, live_experiments
from rftd.storage.queries.signal import SignalRow, signal_of
from rftd.storage.queries.steps import StepRow, list_steps

if TYPE_CHECKING:
    import httpx
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from rftd.daemon.run.operations import Operations
    from rftd.daemon.run.supervisor.disk_guard import DiskGuard
    from rftd.ops.logs import Logger

AlertKind = Literal["signal_lost", "signal_regained", "failed", "completed", "disk", "stalled"]

LOOK_S: Final = 5.0
STALLED_S: Final = 300.0
"""Age of a wait that only a person can end, before the alert."""
MOST_WAITING: Final = 200
"""Number of alerts waiting for a receiver; the oldest are dropped beyond, and counted."""
SEND_TIMEOUT_S: Final = 10.0
RETRY_S: Final = (1.0, 5.0, 30.0, 120.0, 600.0)
"""Pauses between attempts for one alert; dropped after the last one."""
_STEPS: Final = 5


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One alert, with the figures around it."""

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


class Alerts:
    """Watches tables and waits, and posts alerts; two tasks of their own, so a slow receiver holds nothing up."""

    def __init__(
        self,
        urls: Sequence[str],
        engine: AsyncEngine,
        operations: Operations,
        guard: DiskGuard,
        *,
        clock: Clock,
        logger: Logger,
    ) -> None:
        self._engine = engine
        self._operations = operations
        self._guard = guard
        self._clock = clock
        self._logger = logger
        self._queues = {url: _Outbox(url, clock=clock, logger=logger) for url in urls}
        self._known: dict[str, LiveRow] | None = None
        self._stalled: set[str] = set()
        self._short = False

    async def run(self) -> None:
        """Watches and posts until cancelled; returns at once without a receiver."""
        if not self._queues:
            return
        async with asyncio.TaskGroup() as tasks:
            for outbox in self._queues.values():
                tasks.create_task(outbox.run())
            while True:
                await self.look()
                await self._clock.sleep(LOOK_S)

    async def look(self) -> None:
        """Looks once, and queues an alert for each change since the last look; the first look only remembers."""
        if (shortage := self._guard.shortage) is not None and not self._short:
            self._queue(Alert(kind="disk", text=shortage.reason, time_ns=self._clock.now_ns()))
        self._short = shortage is not None
        async with self._engine.connect() as connection:
            live = {row.id: row for row in await live_experiments(connection)}
            known = live if self._known is None else self._known
            for id in known.keys() - live.keys():
                await self._ended(connection, id)
            for row in live.values():
                before = known.get(row.id)
                await self._signal(connection, row, before.signal_cause if before is not None else None)
                if row.state in ("running", "paused"):
                    await self._wait(connection, row)
            self._known = live
        self._stalled &= live.keys()

    async def _ended(self, connection: AsyncConnection, id: str) -> None:
        summary = await get_summary(connection, UUID(id))
        if summary.state == "completed":
            await self._tell(connection, "completed", f"{summary.name} completed after {summary.step} steps", summary)
        elif summary.state in ("failed", "rejected"):
            reason = ": ".join(filter(None, (summary.code, summary.reason)))
            await self._tell(connection, "failed", f"{summary.name} {summary.state}: {reason}", summary)

    async def _signal(self, connection: AsyncConnection, row: LiveRow, before: str | None) -> None:
        if bool(row.signal_cause) == bool(before):
            return
        summary = await get_summary(connection, UUID(row.id))
        if not row.signal_cause:
            await self._tell(connection, "signal_regained", f"{summary.name} learns again", summary)
            return
        signal = await signal_of(connection, UUID(row.id))
        reason = signal.reason if signal is not None and signal.reason else row.signal_cause
        text = f"{summary.name} lost its learning signal at step {row.signal_step}: {reason}"
        await self._tell(connection, "signal_lost", text, summary)

    async def _wait(self, connection: AsyncConnection, row: LiveRow) -> None:
        waits = await self._operations.waits(UUID(row.id))
        oldest_ns = self._clock.now_ns() - int(STALLED_S * 1e9)
        stuck = [
            wait
            for wait in waits
            if wait.level is Level.STUCK and (wait.since_ns is None or wait.since_ns <= oldest_ns)
        ]
        if not stuck:
            self._stalled.discard(row.id)
        elif row.id not in self._stalled:
            self._stalled.add(row.id)
            summary = await get_summary(connection, UUID(row.id))
            await self._tell(connection, "stalled", f"{summary.name}: {sentence_of(stuck[0])}", summary, waits)

    async def _tell(
        self,
        connection: AsyncConnection,
        kind: AlertKind,
        text: str,
        summary: ExperimentSummary,
        waits: Sequence[Wait] = (),
    ) -> None:
        id = UUID(summary.id)
        try:
            signal = await signal_of(connection, id)
            steps = await list_steps(connection, id, first_step=max(0, summary.step - _STEPS + 1), limit=_STEPS)
        except NotFoundError:  # removed meanwhile
            return
        self._queue(
            Alert(
                kind=kind,
                text=text,
                time_ns=self._clock.now_ns(),
                experiment=summary,
                signal=signal,
                steps=steps,
                waits=list(waits),
            )
        )

    def _queue(self, alert: Alert) -> None:
        self._logger.info("alert", kind=alert.kind, text=alert.text)
        for outbox in self._queues.values():
            outbox.add(alert)


class _Outbox:
    """Alerts on their way to one receiver, in order."""

    def __init__(self, url: str, *, clock: Clock, logger: Logger) -> None:
        self._url = url
        self._host = urlsplit(url).hostname or ""
        self._clock = clock
        self._logger = logger
        self._waiting: deque[Alert] = deque(maxlen=MOST_WAITING)
        self._dropped = 0
        self._filled = asyncio.Event()

    def add(self, alert: Alert) -> None:
        self._dropped += len(self._waiting) == MOST_WAITING
        self._waiting.append(alert)
        self._filled.set()

    async def run(self) -> None:
        import httpx

        # No proxy of the environment and no redirect: the owner named this receiver, and no other.
        async with httpx.AsyncClient(timeout=SEND_TIMEOUT_S, trust_env=False) as client:
            while True:
                await self._filled.wait()
                self._filled.clear()
                while self._waiting:
                    alert = self._waiting[0]
                    dropped = self._dropped
                    is_sent = await self._sent(client, msgspec.structs.replace(alert, dropped=dropped))
                    self._dropped += -dropped if is_sent else 1
                    # A full queue may have dropped the alert meanwhile.
                    if self._waiting and self._waiting[0] is alert:
                        self._waiting.popleft()

    async def _sent(self, client: httpx.AsyncClient, alert: Alert) -> bool:
        """True once the receiver took the alert; False after the last attempt."""
        import httpx

        for pause_s in (*RETRY_S, None):
            try:
                answer = await client.post(
                    self._url, content=encode(alert), headers={"Content-Type": "application/json"}
                )
                if answer.is_success:
                    return True
                problem = f"status {answer.status_code}"
            except httpx.HTTPError as error:
                problem = type(error).__name__
            # The host alone: the address of a webhook is a secret.
            self._logger.warning("alert.not_sent", host=self._host, kind=alert.kind, problem=problem)
            if pause_s is not None:
                await self._clock.sleep(pause_s)
        return False


def checked_alert_url(url: str) -> str:
    """Returns an address for alerts. Raises UsageError, without repeating the address, for an impossible one."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("this is no address of a receiver", field="--alerts-to", fix="write https://HOST/PATH")
    return url
