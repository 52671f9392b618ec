"""Requests of other programs that nobody has answered yet: a fold of the requests and of the spines, in
whatever order they are read.

A request is answered by the event that it became, which carries its key, or by an `experiment.rejected` that names its
place. So no position has to be kept beside the log: what is open is what the log says.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from rftd.streams.codec import Decoded
from rftd.streams.envelope import Position, Record
from rftd.streams.events.experiment import ExperimentAccepted, ExperimentRejected, ExperimentSubmitted
from rftd.streams.folds.commands import Commands
from rftd.streams.requests import CloudEvent

REMEMBERED: Final = 1000
"""The newest refusals that can be listed; all of them stay in the log."""


class OpenRequest(msgspec.Struct, frozen=True, gc=False):
    """A request that waits for its answer."""

    position: Position
    key: UUID | None
    """None: it has no identity, and will be refused."""
    digest: bytes


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request that was refused."""

    position: Position
    time_ns: int


class Requests(msgspec.Struct):
    """The requests that are open, in the order in which they were read."""

    open: dict[str, OpenRequest] = {}
    """The open requests by their places, `stream/partition@offset`."""
    answered: dict[UUID, OpenRequest] = {}
    """The request that each key was used for."""
    early: set[str] = set()
    """Places of refused requests that lie in a partition which was read less far than their refusal's."""
    submitted: dict[UUID, UUID] = {}
    """The key of each experiment that is submitted and not accepted yet."""
    refused: list[Refusal] = []
    """The newest refusals, in the order in which they were read: partitions have none among them."""

    def arrive(self, record: Record, event: CloudEvent, commands: Commands) -> None:
        """Takes in a request."""
        position = Position(record.partition, record.offset)
        place = str(position)
        if place in self.early:
            self.early.discard(place)
            return
        request = OpenRequest(position, event.key, event.digest)
        used = request.key is not None and any(use.effective for use in commands.of(request.key))
        # The answer may have been read first, from another partition: then the first request of the key is its.
        if not used or self._answered(request) != request.digest:
            self.open[place] = request

    def answer(self, decoded: Decoded, commands: Commands) -> None:
        """Takes in an effective event, which may be what a request became, or its refusal."""
        event = decoded.event
        head = decoded.head
        if isinstance(event, ExperimentRejected):
            if event.request is not None:
                position = Position(decoded.partition, decoded.offset)
                self._refused(event.request.place, Refusal(position, head.time_ns))
            return
        if isinstance(event, ExperimentAccepted) and head.experiment is not None:
            self.submitted.pop(head.experiment, None)
        if head.correlation is None or commands.at(head.id, head.correlation) is None:
            return
        if isinstance(event, ExperimentSubmitted) and head.experiment is not None:
            self.submitted[head.experiment] = head.correlation
        self._settle(head.correlation)

    def cut_off(self) -> list[OpenRequest]:
        """Submissions that are in the log and not accepted: a kill came between, or their other half is missing."""
        return [self.answered[key] for key in self.submitted.values() if key in self.answered]

    def _refused(self, place: str, refusal: Refusal) -> None:
        if self.open.pop(place, None) is None:
            self.early.add(place)
        self.refused.append(refusal)
        if len(self.refused) > 2 * REMEMBERED:
            del self.refused[:-REMEMBERED]

    def newest_refusals(self) -> list[Position]:
        """The places of the newest refusals, oldest first."""
        by_time = sorted(self.refused, key=lambda refusal: (refusal.time_ns, refusal.position))
        return [refusal.position for refusal in by_time[-REMEMBERED:]]

    def _settle(self, key: UUID) -> None:
        first = next((each for each in self.open.values() if each.key == key), None)
        if first is None:
            return
        digest = self._answered(first)
        for place in [place for place, each in self.open.items() if (each.key, each.digest) == (key, digest)]:
            del self.open[place]

    def _answered(self, request: OpenRequest) -> bytes:
        """The digest of the request that has its key; this one's if none had it before."""
        assert request.key is not None
        return self.answered.setdefault(request.key, request).digest
