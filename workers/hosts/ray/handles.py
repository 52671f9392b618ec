"""Handles of workers, sweeps and searches on a cluster: each has the state last reported by the driver, and never calls
Ray.
"""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from rftd.ops.words import Level, Words
from rftd.workers.hosts.executor import Handle, WorkerOrder
from rftd.workers.hosts.ray.messages import ActorEnd, ActorOrder, ActorSeen, Seek, Sweep


class ActorHost(Protocol):
    """The part of a launcher used by its handles."""

    away: Words | None
    """Why Ray does not answer; None while connected."""

    def end(self, handle: RayHandle) -> None:
        """Requests the end of the handle's worker."""

    def adopt_found(self, order: WorkerOrder) -> Handle:
        """Returns the handle of the actor found in the order's slot."""


class RayHandle:
    """A worker on a Ray cluster, in its last reported state; implements `Handle`."""

    def __init__(self, launcher: ActorHost, order: ActorOrder) -> None:
        self._launcher = launcher
        self.order = order
        self.seen = ActorSeen(worker=order.assignment.worker, state="pending")
        self.asked: ActorEnd | None = None
        self.orphaned = False
        """True if its end was requested while no driver could be told, so that its actor may still run."""

    @property
    def pid(self) -> int | None:
        return self.seen.pid

    @property
    def reason(self) -> str:
        return self.seen.reason

    @property
    def waits(self) -> Words | None:
        if self.seen.state != "pending":
            return None
        if (away := self._launcher.away) is not None:
            return away
        return Words("placing", self.seen.waits, "Ray", self.seen.unblock, Level.STUCK) if self.seen.waits else None

    def exit_code(self) -> int | None:
        return self.seen.code if self.seen.state == "ended" else None

    def terminate(self) -> None:
        self._end(at_once=False)

    def kill(self) -> None:
        self._end(at_once=True)

    def _end(self, *, at_once: bool) -> None:
        if self.seen.state == "ended" or (self.asked is not None and self.asked.at_once >= at_once):
            return
        self.asked = ActorEnd(worker=self.order.assignment.worker, at_once=at_once)
        self._launcher.end(self)


class RaySweep:
    """The handle of the removal of all actors of a slot; implements `Handle`."""

    pid = None
    reason = ""

    def __init__(self, launcher: ActorHost, sweep: Sweep) -> None:
        self._launcher = launcher
        self.request = sweep
        self.seen = ActorSeen(worker=sweep.number, state="pending", waits="actors of Ray's to end")

    @property
    def waits(self) -> Words | None:
        return self._launcher.away or Words("leftovers", self.seen.waits, "Ray", "Ray has ended them", Level.STUCK)

    def exit_code(self) -> int | None:
        return self.seen.code if self.seen.state == "ended" else None

    def terminate(self) -> None:
        return

    def kill(self) -> None:
        return


class RaySearch:
    """A search for the actors of a slot; implements `Search`. Unfinished while Ray is away, when nothing can be placed
    either.
    """

    def __init__(self, launcher: ActorHost, seek: Seek) -> None:
        self._launcher = launcher
        self.request = seek
        self.seen = ActorSeen(worker=seek.number, state="pending")

    @property
    def over(self) -> bool:
        return self.seen.state == "ended"

    @property
    def waits(self) -> Words | None:
        return None if self.over else self._launcher.away

    def worker(self, order: WorkerOrder) -> UUID | None:
        # Several workers in a slot all end before the next placement, because nobody knows the surplus one.
        return self.seen.found[0] if len(self.seen.found) == 1 else None

    def adopt(self, order: WorkerOrder) -> Handle | None:
        return self._launcher.adopt_found(order)
