"""`Liveness` measures the silence of workers. It serves scheduling only: fences, not silence, keep two owners apart."""

from __future__ import annotations

from uuid import UUID

from rftd.ops import limits
from rftd.streams.events.worker import Heartbeat, WorkerStarted

MAX_TICK_INTERVAL_S = 2 * limits.HEARTBEAT_INTERVAL_S
"""Maximum seconds counted between two calls of `tick`: a process stopped for longer cannot have read heartbeats."""


class Liveness:
    """Times of workers' last signs of life, in seconds during which this process was reading the log.

    A process that was stopped, or waited long for the log, finds old heartbeats afterwards, so silence during an
    absence says nothing about any worker. After a restart, every worker gets a full deadline again.
    """

    def __init__(self, lost_after_s: float = limits.WORKER_LOST_AFTER_S) -> None:
        """Begins without signs of life; a worker silent for `lost_after_s` counts as lost."""
        self.lost_after_s = lost_after_s
        self.latest: dict[UUID, Heartbeat] = {}
        """Newest heartbeat by worker."""
        self._states_s: dict[UUID, float] = {}
        """Time of the first heartbeat with the worker's present state, by the clock of `tick`."""
        self._heard_s: dict[UUID, float] = {}
        """Time of each worker's last sign of life, in seconds counted by `tick`."""
        self._renewed_s: dict[UUID, float] = {}
        """Time of each tested lease's last progress, in the same seconds."""
        self._began_s: dict[UUID, float] = {}
        """Time of the first call of `age_s` for each lease, in the same seconds."""
        self._pending: list[Heartbeat | WorkerStarted] = []
        """Signs of life not dated yet."""
        self._looked_s = 0.0
        """Total seconds counted by `tick`."""
        self._ticked_s: float | None = None

    def note(self, sign: Heartbeat | WorkerStarted) -> None:
        """Records a sign of life, dated by the next `tick`.

        Joining counts too: a worker silent while opening its engine gets a full deadline from then on.
        """
        self._pending.append(sign)

    def tick(self, now_s: float) -> None:
        """Advances the clock to the monotonic time `now_s`, and dates the signs of life recorded since the
        last call.
        """
        self._looked_s = self._looked_until(now_s)
        self._ticked_s = now_s
        for sign in self._pending:
            self._heard_s[sign.worker] = self._looked_s
            if isinstance(sign, WorkerStarted):
                continue
            before = self.latest.get(sign.worker)
            if before is None or before.state != sign.state:
                self._states_s[sign.worker] = now_s
            self.latest[sign.worker] = sign
            for lease in sign.leases:
                if lease in self._renewed_s:  # a lease never tested is over, or counts from its first test
                    self._renewed_s[lease] = self._looked_s
        self._pending.clear()

    def state_s(self, worker: UUID, now_s: float) -> float:
        """Returns the seconds for which the worker's heartbeats have reported an unchanged state; 0 without
        heartbeats.
        """
        return max(0.0, now_s - self._states_s.get(worker, now_s))

    def looked_s(self, now_s: float) -> float:
        """Returns the seconds for which this process has been reading the log, without times in which the process was
        stopped.
        """
        return self._looked_until(now_s)

    def silent(self, worker: UUID, now_s: float) -> bool:
        """True if the worker sent nothing for `lost_after_s` seconds; the first call for an unknown worker starts the
        count.
        """
        looked_s = self._looked_until(now_s)
        # The first call starts the count: after a restart no worker is lost before a whole deadline of looking.
        return looked_s - self._heard_s.setdefault(worker, looked_s) > self.lost_after_s

    def quiet_s(self, worker: UUID, now_s: float) -> float | None:
        """Returns the seconds since the worker's last sign of life; None for a worker without a sign of life or a call
        of `silent`.
        """
        heard_s = self._heard_s.get(worker)
        return None if heard_s is None else self._looked_until(now_s) - heard_s

    def unheard(self, worker: UUID, now_s: float) -> bool:
        """True if `silent` would be, without starting the count of an unknown worker; for readers that
        decide nothing.
        """
        return (self.quiet_s(worker, now_s) or 0.0) > self.lost_after_s

    def overdue(self, lease: UUID, deadline_s: float, now_s: float) -> bool:
        """True if the lease made no progress for `deadline_s` seconds, counted from the first call for a new lease."""
        looked_s = self._looked_until(now_s)
        return looked_s - self._renewed_s.setdefault(lease, looked_s) > deadline_s

    def age_s(self, lease: UUID, now_s: float) -> float:
        """Returns the seconds since the first call about the lease."""
        looked_s = self._looked_until(now_s)
        return looked_s - self._began_s.setdefault(lease, looked_s)

    def forget(self, lease: UUID) -> None:
        """Deletes the times recorded for an ended lease."""
        self._renewed_s.pop(lease, None)
        self._began_s.pop(lease, None)

    def _looked_until(self, now_s: float) -> float:
        """Returns the seconds spent reading the log up to the clock reading `now_s`, at most `MAX_TICK_INTERVAL_S`
        after the last tick.
        """
        if self._ticked_s is None:
            return self._looked_s
        # Capped: a process stopped for an hour would otherwise find every worker an hour silent.
        return self._looked_s + min(now_s - self._ticked_s, MAX_TICK_INTERVAL_S)
