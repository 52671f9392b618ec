"""`ExplorerView`: the part of the log read by an explorer: leases of its slot, the spine, the weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final
from uuid import UUID

import msgspec

from rftd.ops.tracing.trace_context import TraceContext, parsed
from rftd.streams.events.task import EvalLeased, GroupLeased, TaskExpired, TaskLeased, TasksOffered, note_offer
from rftd.streams.events.weights import WeightsPublished
from rftd.streams.events.worker import WorkerLost
from rftd.streams.folds.run_state import SpineParts
from rftd.streams.folds.spine import Spine
from rftd.streams.folds.weights import Weights
from rftd.streams.log import topics
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.newest import Newest

TRACES: Final = 256
"""Number of newest records with a stored trace context; fewer are normally in progress."""


class _Offers(msgspec.Struct):
    """The part of the groups' fold read by an explorer from a snapshot."""

    offers: dict[int, TasksOffered] = {}
    """Largest offer of each serving stage."""


class ExplorerParts(SpineParts, kw_only=True):
    """The part of a snapshot read by an explorer."""

    groups: _Offers
    """Offers among the groups' fold."""


class ExplorerView:
    """A fold of the records read by an explorer: its new leases, the spine, the weights, and the offers of serving
    stages.
    """

    def __init__(self, worker: UUID) -> None:
        """`worker` is the explorer's id: leases of other workers are ignored."""
        self.spine = Spine()
        """Fold of the spine."""
        self.weights = Weights()
        """Fold of announced weights."""
        self.leased: deque[TaskLeased | EvalLeased | GroupLeased] = deque()
        """New leases for this worker, oldest first, to be removed by the reader; few, because the dispatcher limits
        them.
        """
        self.ended: deque[UUID] = deque()
        """Expired leases whose rollouts have to be cancelled, to be removed by the reader."""
        self.lost = ""
        """Reason why the log declares this worker lost, so that it gets no more leases; empty otherwise."""
        self.offers: dict[int, TasksOffered] = {}
        """Largest offer of each serving stage, if experiences are followed."""
        self._traces: Newest[Hashable, TraceContext] = Newest(TRACES)
        """Trace contexts of the newest leases and weights."""
        self._worker = worker
        self._known_leases: set[UUID] = set()
        """Leases already passed on, so that a repeated record is ignored."""

    def adopt(self, parts: ExplorerParts) -> None:
        """Starts from the state in a snapshot; only on a new view."""
        self.offers = parts.groups.offers
        self.spine = parts.spine
        self.weights = parts.weights

    def trace_of(self, key: Hashable) -> TraceContext | None:
        """Returns the trace context of a lease, by id, or of weights, by version and generation; None without one."""
        return self._traces.get(key)

    def apply(self, decoded: Decoded) -> None:
        """Folds one event into the spine, the weights, the offers or the leases."""
        if decoded.head.traceparent is not None:
            self._note_trace(decoded)
        match decoded.partition.stream:
            case topics.EXPERIMENTS:
                self.spine.apply(decoded)
            case topics.WEIGHTS:
                self.weights.apply(decoded)
            case topics.TASKS:
                self._fold_lease(decoded)
            case topics.EXPERIENCES:
                if isinstance(decoded.event, TasksOffered):
                    note_offer(self.offers, decoded.event)
            case topics.WORKERS:
                if isinstance(decoded.event, WorkerLost) and decoded.event.worker == self._worker:
                    self.lost = decoded.event.reason
            case _:
                pass

    def _note_trace(self, decoded: Decoded) -> None:
        """Stores the trace context of a lease of this worker, or of announced weights."""
        match decoded.event:
            case TaskLeased() | EvalLeased() as lease if lease.worker == self._worker:
                key: Hashable = lease.lease
            case WeightsPublished() as weights:
                key = (weights.version, weights.generation)
            case _:
                return
        context = parsed(decoded.head.traceparent)
        if context is not None:
            self._traces.put(key, context)

    def _fold_lease(self, decoded: Decoded) -> None:
        """Adds a new lease of this worker, or the expiry of a lease of any worker."""
        event = decoded.event
        match event:
            case TaskLeased() | EvalLeased() | GroupLeased() if event.worker == self._worker:
                if event.lease not in self._known_leases:
                    self._known_leases.add(event.lease)
                    self.leased.append(event)
            case TaskExpired():
                # Of any worker: the explorer knows its own leases.
                self.ended.append(event.lease)
            case _:
                pass
