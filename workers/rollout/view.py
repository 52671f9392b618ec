"""`ExplorerView`: the part of the log that an explorer reads: leases of its slot, the spine, the weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Final
from uuid import UUID

import msgspec

from rftd.ops.tracing.trace_context import TraceContext, parsed
from rftd.streams.events.task import EvalLeased, TaskExpired, TaskLeased, TasksOffered, note_offer
from rftd.streams.events.weights import WeightsPublished
from rftd.streams.events.worker import WorkerLost
from rftd.streams.folds.run_state import SpineParts
from rftd.streams.folds.spine import Spine
from rftd.streams.folds.weights import Weights
from rftd.streams.log import topics
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.newest import Newest

TRACES: Final = 256
"""The newest records whose place in a trace is remembered; more are seldom under way."""


class _Offers(msgspec.Struct):
    """The part of the groups' fold that an explorer takes from a snapshot."""

    offers: dict[int, TasksOffered] = {}


class ExplorerParts(SpineParts, kw_only=True):
    """The part of a snapshot that an explorer takes."""

    groups: _Offers


class ExplorerView:
    """A fold of four partitions, five where it serves, with the leases that came since they were last taken."""

    def __init__(self, worker: UUID) -> None:
        self.spine = Spine()
        self.weights = Weights()
        self.leased: deque[TaskLeased | EvalLeased] = deque()
        """New leases of this very worker, oldest first; bounded by the dispatcher's credits."""
        self.ended: deque[UUID] = deque()
        """Leases that expired: their rollouts are to be dropped."""
        self.lost = ""
        """Why this very worker was declared lost, if it was: it is given no work any more."""
        self.offers: dict[int, TasksOffered] = {}
        """The largest offer of each stage that serves, if experiences are followed."""
        self._traces: Newest[Hashable, TraceContext] = Newest(TRACES)
        self._worker = worker
        self._taken: set[UUID] = set()
        """Leases that were handed on: one that comes again is not run again."""

    def adopt(self, parts: ExplorerParts) -> None:
        """Takes over what a snapshot holds; the view must be new."""
        self.offers = parts.groups.offers
        self.spine = parts.spine
        self.weights = parts.weights

    def trace_of(self, key: Hashable) -> TraceContext | None:
        """The place in a trace of a lease, by its id, or of weights, by version and generation; None if it has none."""
        return self._traces.get(key)

    def apply(self, decoded: Decoded) -> None:
        """Takes in one event."""
        if decoded.head.traceparent is not None:
            self._note_trace(decoded)
        match decoded.partition.stream:
            case topics.EXPERIMENTS:
                self.spine.apply(decoded)
            case topics.WEIGHTS:
                self.weights.apply(decoded)
            case topics.TASKS:
                self._task(decoded)
            case topics.EXPERIENCES:
                if isinstance(decoded.event, TasksOffered):
                    note_offer(self.offers, decoded.event)
            case topics.WORKERS:
                if isinstance(decoded.event, WorkerLost) and decoded.event.worker == self._worker:
                    self.lost = decoded.event.reason
            case _:
                pass

    def _note_trace(self, decoded: Decoded) -> None:
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

    def _task(self, decoded: Decoded) -> None:
        event = decoded.event
        match event:
            case TaskLeased() | EvalLeased() if event.worker == self._worker:
                if event.lease not in self._taken:
                    self._taken.add(event.lease)
                    self.leased.append(event)
            case TaskExpired():
                # Whoever had the lease: the explorer knows which are its own.
                self.ended.append(event.lease)
            case _:
                pass
