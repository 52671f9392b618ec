"""Who was heard of when: renews leases and finds silent workers. Scheduling only: no safety rests on it (rule 4)."""

from __future__ import annotations

from uuid import UUID

from rftd.ops import limits
from rftd.streams.events.worker import Heartbeat


class Liveness:
    """Last signs of life by this process's clock. Lost on restart: then everything gets one full deadline again."""

    def __init__(self, lost_after_s: float = limits.WORKER_LOST_AFTER_S) -> None:
        self.lost_after_s = lost_after_s
        self.latest: dict[UUID, Heartbeat] = {}
        self._heard_s: dict[UUID, float] = {}
        self._renewed_s: dict[UUID, float] = {}
        self._pending: list[Heartbeat] = []

    def note(self, heartbeat: Heartbeat) -> None:
        """Takes in a heartbeat; it counts from the next `tick` on."""
        self._pending.append(heartbeat)

    def tick(self, now_s: float) -> None:
        """Dates what arrived since the last tick."""
        for heartbeat in self._pending:
            self.latest[heartbeat.worker] = heartbeat
            self._heard_s[heartbeat.worker] = now_s
            for lease in heartbeat.leases:
                self._renewed_s[lease] = now_s
        self._pending.clear()

    def silent(self, worker: UUID, now_s: float) -> bool:
        """True if nothing was heard of the worker for `lost_after_s`."""
        return now_s - self._heard_s.setdefault(worker, now_s) > self.lost_after_s

    def quiet_s(self, worker: UUID, now_s: float) -> float | None:
        """For how long nothing was heard of the worker; None if it was never looked for."""
        heard_s = self._heard_s.get(worker)
        return None if heard_s is None else now_s - heard_s

    def unheard(self, worker: UUID, now_s: float) -> bool:
        """The same as `silent`, for those who only look."""
        return (self.quiet_s(worker, now_s) or 0.0) > self.lost_after_s

    def overdue(self, lease: UUID, deadline_s: float, now_s: float) -> bool:
        """True if the lease made no progress for its whole deadline."""
        return now_s - self._renewed_s.setdefault(lease, now_s) > deadline_s

    def forget(self, lease: UUID) -> None:
        """Drops what is kept of a lease that is over."""
        self._renewed_s.pop(lease, None)
