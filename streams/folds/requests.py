"""Requests of other programs that nobody has answered yet: a fold of the requests and of the spines, in
whatever order they are read.

A request is answered by the event that it became, which carries its key, or by an `experiment.rejected` that names its
place. So no position has to be kept beside the log: what is open is what the log says.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.streams.events.experiment import ExperimentAccepted, ExperimentRejected, ExperimentSubmitted
from rftd.streams.folds.answered_requests import AnsweredRequests, OpenRequest
from rftd.streams.folds.commands import Commands
from rftd.streams.log.codec import Decoded
from rftd.streams.log.envelope import Position, Record
from rftd.streams.log.requests import CloudEvent

REMEMBERED: Final = 1000
"""The newest refusals that can be listed; all of them stay in the log."""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request that was refused."""

    position: Position
    time_ns: int


class Requests(msgspec.Struct):
    """The requests that are open, in the order in which they were read."""

    open: dict[str, OpenRequest] = {}
    """The open requests by their places, `stream/partition@offset`."""
    commands: dict[str, None] = {}
    """The places of open requests other than tasks, in the order in which they were read."""
    places: dict[UUID, list[str]] = {}
    """The places of the open requests that have a key, by it."""
    counts: dict[int, int] = {}
    """The number of open requests of each partition."""
    behind: dict[int, int] = {}
    """The first offset that was not taken in, of partitions that have as many open requests as there may be."""
    answered: AnsweredRequests = msgspec.field(default_factory=AnsweredRequests)
    """The request that each key was used for."""
    early: set[str] = set()
    """Places of refused requests that lie in a partition which was read less far than their refusal's."""
    submitted: dict[UUID, UUID] = {}
    """The key of each experiment that is submitted and not accepted yet."""
    refused: list[Refusal] = []
    """The newest refusals, in the order in which they were read: partitions have none among them."""

    def arrive(self, record: Record, event: CloudEvent, commands: Commands) -> None:
        """Takes in a request, unless its partition has too many open ones: then it is left for later."""
        number = record.partition.number
        if number in self.behind or self.counts.get(number, 0) >= limits.OPEN_REQUESTS:
            self.behind.setdefault(number, record.offset)
            return
        position = Position(record.partition, record.offset)
        place = str(position)
        if place in self.early:
            self.early.discard(place)
            return
        request = OpenRequest(position, event.key, event.digest)
        used = request.key is not None and any(use.effective for use in commands.of(request.key))
        # The answer may have been read first, from another partition: then the first request of the key is its.
        if not used or self.answered.first(request).digest != request.digest:
            self._open(place, request, brings_tasks=event.brings_tasks)

    def has_room(self, partition: int) -> bool:
        """True if many requests of the partition may be taken in."""
        return self.counts.get(partition, 0) <= limits.OPEN_REQUESTS // 2

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
        used = (self.answered.get(key) for key in self.submitted.values())
        return [request for request in used if request is not None]

    def _refused(self, place: str, refusal: Refusal) -> None:
        if place in self.open:
            self._close(place)
        else:
            self.early.add(place)
        self.refused.append(refusal)
        if len(self.refused) > 2 * REMEMBERED:
            del self.refused[:-REMEMBERED]

    def newest_refusals(self) -> list[Position]:
        """The places of the newest refusals, oldest first."""
        by_time = sorted(self.refused, key=lambda refusal: (refusal.time_ns, refusal.position))
        return [refusal.position for refusal in by_time[-REMEMBERED:]]

    def _settle(self, key: UUID) -> None:
        places = self.places.get(key)
        if not places:
            return
        digest = self.answered.first(self.open[places[0]]).digest
        for place in [place for place in places if self.open[place].digest == digest]:
            self._close(place)

    def _open(self, place: str, request: OpenRequest, *, brings_tasks: bool) -> None:
        self.open[place] = request
        if not brings_tasks:
            self.commands[place] = None
        number = request.position.partition.number
        self.counts[number] = self.counts.get(number, 0) + 1
        if request.key is not None:
            self.places.setdefault(request.key, []).append(place)

    def _close(self, place: str) -> None:
        request = self.open.pop(place)
        self.commands.pop(place, None)
        self.counts[request.position.partition.number] -= 1
        if request.key is None:
            return
        places = self.places[request.key]
        places.remove(place)
        if not places:
            del self.places[request.key]
