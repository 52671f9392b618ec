"""`Alerts`: what a person should know of runs and disks, posted as JSON to URLs of the daemon's own configuration."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from rftd.daemon.http.views.alerts import AlertKind, AlertLine, AlertList, ReceiverView
from rftd.daemon.http.views.wire import encode
from rftd.daemon.run.why.wait import Wait, sentence_of
from rftd.daemon.serve.alert import Alert, AlertsFile, AlertsState
from rftd.ops.clock import Clock
from rftd.ops.errors import NotFoundError, UsageError
from rftd.ops.ids import NAMESPACE, derive
from rftd.ops.words import Level
from rftd.storage.queries.experiments import ExperimentSummary, get_summary
from rftd.storage.queries.live import LiveRow, ended_experiments, live_experiments
from rftd.storage.queries.signal import signal_of
from rftd.storage.queries.steps import list_steps
from rftd.streams.folds.signal import SOLVED

if TYPE_CHECKING:
    import httpx
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from rftd.daemon.run.operations import Operations
    from rftd.daemon.run.supervisor.disk_guard import DiskGuard
    from rftd.ops.logs import Logger

POLL_INTERVAL_S: Final = 5.0
"""Seconds between two checks for alerts."""
STALLED_S: Final = 300.0
"""Age of a wait that only a person can end, before the alert."""
MOST_WAITING: Final = 200
"""Number of alerts waiting for a receiver; the oldest are dropped beyond, and counted."""
SEND_TIMEOUT_S: Final = 10.0
"""Longest wait in seconds for a receiver's answer."""
RETRY_S: Final = (1.0, 5.0, 30.0, 120.0, 600.0)
"""Pauses between attempts for one alert; dropped after the last one."""
_STEPS: Final = 5
"""Number of newest steps in an alert."""
NEWEST: Final = 20
"""Number of the newest alerts that are kept to be shown."""


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
        file: AlertsFile = AlertsFile(None),  # noqa: B008 - it keeps nothing
        stalled_after_s: float = STALLED_S,
    ) -> None:
        """`file` keeps alerts that no receiver took, and the runs seen, over restarts of the daemon."""
        self._file = file
        self._stalled_after_s = stalled_after_s
        self._saving = asyncio.Lock()
        self._saved = b""
        self._engine = engine
        self._operations = operations
        self._guard = guard
        self._clock = clock
        self._logger = logger
        stored = file.read() if urls else None
        state = stored or AlertsState()
        self._outboxes = [
            _Outbox(url, clock=clock, logger=logger, waiting=state.waiting, dropped=state.dropped, sent=self._save)
            for url in urls
        ]
        self._signals: dict[str, str] | None = None if stored is None else stored.signals
        self._ended_ns = state.ended_ns
        self._stalled: set[str] = state.stalled
        self._newest = deque(state.newest, maxlen=NEWEST)
        """The alerts raised last, the newest first."""
        self._short = False

    async def run(self) -> None:
        """Watches and posts until cancelled; returns at once without a receiver."""
        if not self._outboxes:
            return
        async with asyncio.TaskGroup() as tasks:
            for outbox in self._outboxes:
                tasks.create_task(outbox.run())
            while True:
                await self.look()
                await self._save()
                await self._clock.sleep(POLL_INTERVAL_S)

    def listed(self) -> AlertList:
        """Returns the newest alerts, and the receivers, for the API."""
        receivers = [
            ReceiverView(host=outbox.host, waiting=len(outbox.waiting), dropped=outbox.dropped)
            for outbox in self._outboxes
        ]
        return AlertList(receivers=receivers, items=list(self._newest))

    async def look(self) -> None:
        """Looks once, and queues an alert for each change since the last look, also of an earlier daemon; the very
        first look only remembers.
        """
        if (shortage := self._guard.shortage) is not None and not self._short:
            self._queue("disk", shortage.reason)
        self._short = shortage is not None
        async with self._engine.connect() as connection:
            live = {row.id: row for row in await live_experiments(connection)}
            # A solved task is a healthy run, recorded as a lost signal of this cause.
            signals = {id: "" if row.signal_cause in (None, SOLVED) else row.signal_cause for id, row in live.items()}
            before = signals if self._signals is None else self._signals
            # By the time of their ends too: a short run begins and ends between two looks.
            ended = await ended_experiments(connection, after_ns=self._ended_ns or 0)
            unseen = [] if self._ended_ns is None else [row.id for row in ended]
            for id in dict.fromkeys([*unseen, *(before.keys() - live.keys())]):
                await self._ended(connection, id)
            self._ended_ns = max([row.ended_ns for row in ended], default=self._ended_ns or 0)
            for row in live.values():
                await self._signal(connection, row, before.get(row.id, ""), signals[row.id])
                if row.state in ("running", "paused"):
                    await self._wait(connection, row)
            self._signals = signals
        self._stalled &= live.keys()

    async def _save(self) -> None:
        """Writes what outlives this daemon, if anything has changed."""
        state = AlertsState(
            signals=self._signals or {},
            ended_ns=self._ended_ns,
            stalled=self._stalled,
            waiting={outbox.digest: list(outbox.waiting) for outbox in self._outboxes if outbox.waiting},
            dropped={outbox.digest: outbox.dropped for outbox in self._outboxes if outbox.dropped},
            newest=list(self._newest),
        )
        content = msgspec.json.encode(state, order="deterministic")
        async with self._saving:
            if content != self._saved:
                await asyncio.to_thread(self._file.write, content)
                self._saved = content

    async def _ended(self, connection: AsyncConnection, id: str) -> None:
        try:
            summary = await get_summary(connection, UUID(id))
        except NotFoundError:  # the tables are filled anew, or of another log than before
            return
        if summary.state == "completed":
            await self._tell(connection, "completed", f"{summary.name} completed after {summary.step} steps", summary)
        elif summary.state in ("failed", "rejected"):
            reason = ": ".join(filter(None, (summary.code, summary.reason)))
            await self._tell(connection, "failed", f"{summary.name} {summary.state}: {reason}", summary)

    async def _signal(self, connection: AsyncConnection, row: LiveRow, before: str, cause: str) -> None:
        if bool(cause) == bool(before):
            return
        summary = await get_summary(connection, UUID(row.id))
        if not cause:
            await self._tell(connection, "signal_regained", f"{summary.name} learns again", summary)
            return
        signal = await signal_of(connection, UUID(row.id))
        reason = signal.reason if signal is not None and signal.reason else cause
        text = f"{summary.name} lost its learning signal at step {row.signal_step}: {reason}"
        await self._tell(connection, "signal_lost", text, summary)

    async def _wait(self, connection: AsyncConnection, row: LiveRow) -> None:
        waits = await self._operations.waits(UUID(row.id))
        oldest_ns = self._clock.now_ns() - int(self._stalled_after_s * 1e9)
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
        self._queue(kind, text, experiment=summary, signal=signal, steps=steps, waits=list(waits))

    def _queue(self, kind: AlertKind, text: str, **figures: Any) -> None:
        time_ns = self._clock.now_ns()
        summary: ExperimentSummary | None = figures.get("experiment")
        id = derive(NAMESPACE, "alert", kind, "" if summary is None else summary.id, time_ns)
        alert = Alert(id=str(id), kind=kind, text=text, time_ns=time_ns, **figures)
        self._logger.info("alert", kind=kind, text=text)
        experiment = None if summary is None else summary.id
        self._newest.appendleft(AlertLine(kind=kind, text=text, time_ns=time_ns, experiment=experiment))
        for outbox in self._outboxes:
            outbox.add(alert)


class _Outbox:
    """Alerts on their way to one receiver, in order."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        logger: Logger,
        waiting: Mapping[str, Sequence[Alert]] = MappingProxyType({}),
        dropped: Mapping[str, int] = MappingProxyType({}),
        sent: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`waiting` and `dropped` are those of an earlier daemon, by digest; `sent` is called after each alert."""
        self._url = url
        self.host = urlsplit(url).hostname or ""
        """Host of the receiver's address."""
        self.digest = sha256(url.encode()).hexdigest()
        self._clock = clock
        self._logger = logger
        self._note_sent = sent
        self.waiting: deque[Alert] = deque(waiting.get(self.digest, ()), maxlen=MOST_WAITING)
        self.dropped = dropped.get(self.digest, 0)
        self._filled = asyncio.Event()
        if self.waiting:
            self._filled.set()

    def add(self, alert: Alert) -> None:
        """Queues an alert; of too many, the oldest is dropped."""
        self.dropped += len(self.waiting) == MOST_WAITING
        self.waiting.append(alert)
        self._filled.set()

    async def run(self) -> None:
        """Posts the alerts in order until cancelled."""
        import httpx

        # No proxy of the environment and no redirect: the owner named this receiver, and no other.
        async with httpx.AsyncClient(timeout=SEND_TIMEOUT_S, trust_env=False) as client:
            while True:
                await self._filled.wait()
                self._filled.clear()
                while self.waiting:
                    alert = self.waiting[0]
                    dropped = self.dropped
                    is_sent = await self._sent(client, msgspec.structs.replace(alert, dropped=dropped))
                    self.dropped += -dropped if is_sent else 1
                    # A full queue may have dropped the alert meanwhile.
                    if self.waiting and self.waiting[0] is alert:
                        self.waiting.popleft()
                    if self._note_sent is not None:
                        await self._note_sent()

    async def _sent(self, client: httpx.AsyncClient, alert: Alert) -> bool:
        """True once the receiver took the alert; False after the last attempt."""
        import httpx

        for pause_s in (*RETRY_S, None):
            try:
                headers = {"Content-Type": "application/json", "Idempotency-Key": alert.id}
                answer = await client.post(self._url, content=encode(alert), headers=headers)
                if answer.is_success:
                    return True
                problem = f"status {answer.status_code}"
            except httpx.HTTPError as error:
                problem = type(error).__name__
            # The host alone: the address of a webhook is a secret.
            self._logger.warning("alert.not_sent", host=self.host, kind=alert.kind, problem=problem)
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
        raise UsageError("this is not the address of a receiver", field="--alerts-to", fix="write https://HOST/PATH")
    return url
