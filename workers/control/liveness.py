"""`Liveness` knows who was heard of when. It is for scheduling only: no safety rests on it (rule 4)."""

from __future__ import annotations

from uuid import UUID

from rftd.ops import limits
from rftd.streams.events.worker import Heartbeat, WorkerStarted

LONGEST_LOOK_S = 2 * limits.HEARTBEAT_INTERVAL_S
"""The most seconds between two ticks that count: who did not look has heard nothing."""


class Liveness:
    """Last signs of life, in seconds that this process looked. Lost on restart: all get one full deadline again.

    A process that was stopped, or waited long for the log, finds old heartbeats when it looks again, so silence while
    it did not look says nothing about anybody.
    """

    def __init__(self, lost_after_s: float = limits.WORKER_LOST_AFTER_S) -> None:
        self.lost_after_s = lost_after_s
        self.latest: dict[UUID, Heartbeat] = {}
        self._states_s: dict[UUID, float] = {}
        """When the state of each worker's latest heartbeat was first heard of, by the clock of `tick`."""
        self._heard_s: dict[UUID, float] = {}
        self._renewed_s: dict[UUID, float] = {}
        self._began_s: dict[UUID, float] = {}
        self._pending: list[Heartbeat | WorkerStarted] = []
        self._looked_s = 0.0
        """The part of this process's life in which it looked."""
        self._ticked_s: float | None = None

    def note(self, sign: Heartbeat | WorkerStarted) -> None:
        """Takes in a sign of life; it counts from the next `tick` on.

        To join is one, too: a worker that was silent while it opened its engine has its whole deadline from then on.
        """
        self._pending.append(sign)

    def tick(self, now_s: float) -> None:
        """Dates what arrived since the last tick."""
        self._looked_s = self._looked(now_s)
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
                if lease in self._renewed_s:  # one that nobody asked about is over, or counts from when it is asked for
                    self._renewed_s[lease] = self._looked_s
        self._pending.clear()

    def state_s(self, worker: UUID, now_s: float) -> float:
        """Seconds for which the worker's heartbeats have said what they say; 0 if there is none."""
        return max(0.0, now_s - self._states_s.get(worker, now_s))

    def looked_s(self, now_s: float) -> float:
        """Seconds of this process's life in which it looked: a clock that stands still while nobody looks."""
        return self._looked(now_s)

    def silent(self, worker: UUID, now_s: float) -> bool:
        """True if nothing was heard of the worker for `lost_after_s`."""
        looked_s = self._looked(now_s)
        # The first question starts the count: after a restart nobody is lost before a whole deadline was
        # looked through.
        return looked_s - self._heard_s.setdefault(worker, looked_s) > self.lost_after_s

    def quiet_s(self, worker: UUID, now_s: float) -> float | None:
        """Seconds of looking in which nothing was heard of the worker; None if it was never looked for."""
        heard_s = self._heard_s.get(worker)
        return None if heard_s is None else self._looked(now_s) - heard_s

    def unheard(self, worker: UUID, now_s: float) -> bool:
        """True under the condition of `silent`, without starting the count: for those who only look."""
        return (self.quiet_s(worker, now_s) or 0.0) > self.lost_after_s

    def overdue(self, lease: UUID, deadline_s: float, now_s: float) -> bool:
        """True if the lease made no progress for its whole deadline; of anything else, since it was first asked for."""
        looked_s = self._looked(now_s)
        return looked_s - self._renewed_s.setdefault(lease, looked_s) > deadline_s

    def age_s(self, lease: UUID, now_s: float) -> float:
        """Seconds of looking since this was first asked about the lease."""
        looked_s = self._looked(now_s)
        return looked_s - self._began_s.setdefault(lease, looked_s)

    def forget(self, lease: UUID) -> None:
        """Drops what is kept of a lease that is over."""
        self._renewed_s.pop(lease, None)
        self._began_s.pop(lease, None)

    def _looked(self, now_s: float) -> float:
        if self._ticked_s is None:
            return self._looked_s
        # Capped: a process that was stopped for an hour would otherwise find every worker an hour silent.
        return self._looked_s + min(now_s - self._ticked_s, LONGEST_LOOK_S)
