"""Crews: the workers that each experiment under way has, and where a worker that nobody ordered is of use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from rftd.daemon.registry import Entry
from rftd.streams import topics
from rftd.streams.effective import effective
from rftd.streams.envelope import Record
from rftd.streams.feed import Feed
from rftd.streams.fencing import FenceView
from rftd.streams.folds.roster import Roster
from rftd.streams.folds.spine import Status
from rftd.streams.log import EventLog
from rftd.streams.start import beginning_of
from rftd.streams.topics import Partition

_WORKERS = Partition(topics.WORKERS, 0)


class Crew(NamedTuple):
    """The workers that one experiment has, and whether it can use them."""

    experiment: UUID
    running: bool
    """False while it is paused."""
    explores: bool
    """False if no stage of it has work for an explorer."""
    trainers: int = 0
    explorers: int = 0

    def idle(self, role: str) -> bool:
        """True if a worker of the role has nothing to do here before another role comes, or the pause ends."""
        if not self.running:
            return True
        return not (self.explores and self.trainers) if role == "explorer" else self.explores and not self.explorers

    def lacks(self, role: str) -> bool:
        """True if a worker of the role, and nothing else, is missing here."""
        if role == "explorer":
            return self.running and self.explores and self.trainers > 0 and not self.explorers
        return self.running and not self.trainers and (self.explorers > 0 or not self.explores)


def choose(role: str, crews: Sequence[Crew]) -> UUID | None:
    """The experiment that a worker of the role joins; None if it stands by.

    A trainer takes one without a trainer (two that fence each other in turn would get nowhere), an explorer the one
    with the fewest explorers: of several the first that can go on.
    """
    if role == "trainer":
        free = [each for each in crews if not each.trainers]
        best = min(free, key=lambda each: (not each.running, each.idle(role)), default=None)
    else:
        free = [each for each in crews if each.explores]
        best = min(free, key=lambda each: (not each.running, each.explorers, not each.trainers), default=None)
    return best.experiment if best is not None else None


def stranded(role: str, experiment: UUID, crews: Sequence[Crew]) -> bool:
    """True if a worker of the role has nothing to do in its experiment while another one waits for it alone.

    Of a paused experiment a trainer goes wherever there is none: explorers come after it.
    """
    here = next((each for each in crews if each.experiment == experiment), None)
    if here is None or not here.idle(role):
        return False
    others = [each for each in crews if each is not here]
    if role == "trainer" and not here.running:
        return any(each.running and not each.trainers for each in others)
    return any(each.lacks(role) for each in others)


class Crews:
    """Follows who joins and leaves the experiments of a log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._feed: Feed | None = None
        self._fences = FenceView(midway=True)
        self._rosters: dict[UUID, Roster] = {}

    async def of(self, entries: Sequence[Entry]) -> list[Crew]:
        """The crews of these experiments, which are under way, as the log shows them now."""
        if entries:
            await self._catch_up(entries)
        return [self._crew(entry) for entry in entries]

    async def close(self) -> None:
        """Ends the subscription."""
        if self._feed is not None:
            await self._feed.close()

    def _crew(self, entry: Entry) -> Crew:
        live = self._rosters.get(entry.id, Roster()).live.values()
        return Crew(
            experiment=entry.id,
            running=entry.status is Status.RUNNING,
            explores=any(stage.kind != "train" for stage in entry.spec.stages),
            trainers=sum(started.role == "trainer" for started in live),
            explorers=sum(started.role == "explorer" for started in live),
        )

    async def _catch_up(self, entries: Iterable[Entry]) -> None:
        """Reads up to the present head; an experiment that begins later has its workers above what was read."""
        if self._feed is None:
            starts = [await beginning_of(self._log, each.id, spine_offset=each.spine_offset) for each in entries]
            # From the earliest of them: the stream of workers is one partition for all experiments, read once for
            # all.
            start = min(each.positions.get(_WORKERS, 0) for each in starts)
            self._feed = Feed(self._log.subscribe({_WORKERS: start}))
        heads = await self._log.heads()
        goal = heads[_WORKERS].next_offset if _WORKERS in heads else 0
        while self._feed.positions[_WORKERS] < goal:
            await self._feed.pump(1.0, self._take)

    def _take(self, record: Record) -> None:
        decoded = effective(record, self._fences, lambda head: head.experiment is not None)
        if decoded is not None and decoded.head.experiment is not None:
            self._rosters.setdefault(decoded.head.experiment, Roster()).apply(decoded)
