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
        """Begins with the worker of `order` in the state `pending`, before any report of the driver."""
        self._launcher = launcher
        self.order = order
        self.seen = ActorSeen(worker=order.assignment.worker, state="pending")
        """State of the worker as last reported by the driver."""
        self.asked: ActorEnd | None = None
        """Request sent for the worker's end; None without a request."""
        self.orphaned = False
        """True if its end was requested while no driver could be told, so that its actor may still run."""

    @property
    def pid(self) -> int | None:
        """Process id of the worker on its node, as last reported; None before the start."""
        return self.seen.pid

    @property
    def reason(self) -> str:
        """Why the worker ended or could not run, as last reported; empty before the end."""
        return self.seen.reason

    @property
    def waits(self) -> Words | None:
        """Obstacle to the start of a pending worker: Ray is away, or the one last reported by the driver; None without
        one.
        """
        if self.seen.state != "pending":
            return None
        if (away := self._launcher.away) is not None:
            return away
        return Words("placing", self.seen.waits, "Ray", self.seen.unblock, Level.STUCK) if self.seen.waits else None

    def exit_code(self) -> int | None:
        """Returns the exit code last reported by the driver; None while the worker is pending or running."""
        return self.seen.code if self.seen.state == "ended" else None

    def terminate(self) -> None:
        """Requests the worker's end after its running rollouts; a pending worker never starts."""
        self._request_end(at_once=False)

    def kill(self) -> None:
        """Requests the worker's end at once; a pending worker never starts."""
        self._request_end(at_once=True)

    def _request_end(self, *, at_once: bool) -> None:
        """Requests the worker's end, unless requested as urgently before."""
        if self.seen.state == "ended" or (self.asked is not None and self.asked.at_once >= at_once):
            return
        self.asked = ActorEnd(worker=self.order.assignment.worker, at_once=at_once)
        self._launcher.end(self)


class RaySweep:
    """The handle of the removal of all actors of a slot; implements `Handle`."""

    pid = None
    """None, because a sweep has no process in this machine's numbering."""
    reason = ""
    """No reason: a sweep cannot fail."""

    def __init__(self, launcher: ActorHost, sweep: Sweep) -> None:
        """Begins with the request `sweep` in the state `pending`, before any report of the driver."""
        self._launcher = launcher
        self.request = sweep
        """The request sent to the driver."""
        self.seen = ActorSeen(worker=sweep.number, state="pending", waits="actors of Ray's to end")
        """State of the sweep as last reported by the driver."""

    @property
    def waits(self) -> Words | None:
        """Obstacle to the end of the slot's actors: Ray is away, or has not ended the actors yet."""
        return self._launcher.away or Words("leftovers", self.seen.waits, "Ray", "Ray has ended them", Level.STUCK)

    def exit_code(self) -> int | None:
        """Returns 0 once the slot has no actor any more; None before."""
        return self.seen.code if self.seen.state == "ended" else None

    def terminate(self) -> None:
        """Does nothing."""
        return

    def kill(self) -> None:
        """Does nothing."""
        return


class RaySearch:
    """A search for the actors of a slot; implements `Search`. Unfinished while Ray is away, when nothing can be placed
    either.
    """

    def __init__(self, launcher: ActorHost, seek: Seek) -> None:
        """Begins with the request `seek` in the state `pending`, before any report of the driver."""
        self._launcher = launcher
        self.request = seek
        """The request sent to the driver."""
        self.seen = ActorSeen(worker=seek.number, state="pending")
        """State of the search as last reported by the driver."""

    @property
    def over(self) -> bool:
        """True once the driver has reported the end of the search."""
        return self.seen.state == "ended"

    @property
    def waits(self) -> Words | None:
        """Why the search takes longer: Ray is away; None while Ray answers, and after the search."""
        return None if self.over else self._launcher.away

    def worker(self, order: WorkerOrder) -> UUID | None:
        # Several workers in a slot all end before the next placement, because nobody knows the surplus one.
        """Returns the id of the one worker found in the slot; None before, and if none or several were found."""
        return self.seen.found[0] if len(self.seen.found) == 1 else None

    def adopt(self, order: WorkerOrder) -> Handle | None:
        """Returns the handle of the worker found in the order's slot, without starting anything."""
        return self._launcher.adopt_found(order)
