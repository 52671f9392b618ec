"""Unanswered requests of other programs: a fold of the requests and of the spines, in any order of reading.

A request is answered by its event, carrying its key, or by an `experiment.rejected` naming its position. So no position
has to be kept beside the log: the open requests follow from the log alone.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.streams.events.experiment import ExperimentAccepted, ExperimentRejected, ExperimentSubmitted
from rftd.streams.folds.answered_requests import AnsweredRequests, OpenRequest
from rftd.streams.folds.commands import Commands
from rftd.streams.log.envelope import Decoded, Position, Record
from rftd.streams.log.requests import CloudEvent

REMEMBERED: Final = 1000
"""Number of newest refusals available for lists; all of them stay in the log."""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """The answer to a refused request: position and time of the refusal."""

    position: Position
    """Position of the record in the log."""
    time_ns: int
    """Time of the record, in nanoseconds since 1970."""


class Requests(msgspec.Struct):
    """Requests of other programs not answered yet, in the order of reading."""

    open: dict[str, OpenRequest] = {}
    """The open requests by their positions, `stream/partition@offset`."""
    commands: dict[str, None] = {}
    """Positions of the open requests that are not additions of tasks, in the order of reading."""
    places: dict[UUID, list[str]] = {}
    """Positions of the open requests by request key."""
    counts: dict[int, int] = {}
    """Number of open requests, by partition."""
    behind: dict[int, int] = {}
    """First offset not folded, by partition, for partitions with too many open requests."""
    answered: AnsweredRequests = msgspec.field(default_factory=AnsweredRequests)
    """The first request of each key."""
    early: set[str] = set()
    """Positions of requests whose refusal, in another partition, was read first."""
    submitted: dict[UUID, UUID] = {}
    """Request key of each experiment submitted and not accepted yet."""
    refused: list[Refusal] = []
    """The newest refusals, in the order of reading: partitions have no common order."""

    def arrive(self, record: Record, event: CloudEvent, commands: Commands) -> None:
        """Adds a request; if its partition has too many open ones, reading of that partition stops before
        the request.
        """
        number = record.partition.number
        if number in self.behind or self.counts.get(number, 0) >= limits.OPEN_REQUESTS:
            self.behind.setdefault(number, record.offset)
            return
        position = Position(record.partition, record.offset)
        position_text = str(position)
        if position_text in self.early:
            self.early.discard(position_text)
            return
        request = OpenRequest(position, event.key, event.digest)
        used = request.key is not None and any(use.effective for use in commands.of(request.key))
        # The answer may have been read first, from another partition: then it belongs to the key's first request.
        if not used or self.answered.first(request).digest != request.digest:
            self._add_open(position_text, request, brings_tasks=event.brings_tasks)

    def has_room(self, partition: int) -> bool:
        """True if the partition has far fewer open requests than allowed, so that reading may continue."""
        return self.counts.get(partition, 0) <= limits.OPEN_REQUESTS // 2

    def answer(self, decoded: Decoded, commands: Commands) -> None:
        """Folds an effective event, which may answer a request: a command's event with its key, or a refusal."""
        event = decoded.event
        head = decoded.head
        if isinstance(event, ExperimentRejected):
            if event.request is not None:
                position = Position(decoded.partition, decoded.offset)
                self._fold_refusal(event.request.place, Refusal(position, head.time_ns))
            return
        if isinstance(event, ExperimentAccepted) and head.experiment is not None:
            self.submitted.pop(head.experiment, None)
        if head.correlation is None or commands.at(head.id, head.correlation) is None:
            return
        if isinstance(event, ExperimentSubmitted) and head.experiment is not None:
            self.submitted[head.experiment] = head.correlation
        self._close_equal(head.correlation)

    def cut_off(self) -> list[OpenRequest]:
        """Returns the requests of submissions without acceptance in the log: a crash came between, or the other half is
        missing.
        """
        used = (self.answered.get(key) for key in self.submitted.values())
        return [request for request in used if request is not None]

    def _fold_refusal(self, position_text: str, refusal: Refusal) -> None:
        """Closes a refused request; the position of a request not read yet is remembered."""
        if position_text in self.open:
            self._close(position_text)
        else:
            self.early.add(position_text)
        self.refused.append(refusal)
        if len(self.refused) > 2 * REMEMBERED:
            del self.refused[:-REMEMBERED]

    def newest_refusals(self) -> list[Position]:
        """Returns the positions of the newest refusals, oldest first."""
        by_time = sorted(self.refused, key=lambda refusal: (refusal.time_ns, refusal.position))
        return [refusal.position for refusal in by_time[-REMEMBERED:]]

    def _close_equal(self, key: UUID) -> None:
        """Closes the open requests of a key with the body of the key's first request."""
        positions = self.places.get(key)
        if not positions:
            return
        digest = self.answered.first(self.open[positions[0]]).digest
        for position_text in [
            position_text for position_text in positions if self.open[position_text].digest == digest
        ]:
            self._close(position_text)

    def _add_open(self, position_text: str, request: OpenRequest, *, brings_tasks: bool) -> None:
        """Adds an open request; `brings_tasks` is True if the request adds tasks to a queue."""
        self.open[position_text] = request
        if not brings_tasks:
            self.commands[position_text] = None
        number = request.position.partition.number
        self.counts[number] = self.counts.get(number, 0) + 1
        if request.key is not None:
            self.places.setdefault(request.key, []).append(position_text)

    def _close(self, position_text: str) -> None:
        """Removes an open request."""
        request = self.open.pop(position_text)
        self.commands.pop(position_text, None)
        self.counts[request.position.partition.number] -= 1
        if request.key is None:
            return
        positions = self.places[request.key]
        positions.remove(position_text)
        if not positions:
            del self.places[request.key]
