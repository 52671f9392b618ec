"""Every experiment in the log, by state and in order of submission: a fold of life events and of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.ops.logs import Logger
from rftd.ops.logs import logger as default_logger
from rftd.storage.files.snapshots import SnapshotFolder, believed
from rftd.streams.events import experiment
from rftd.streams.events.evaluated import CheckpointChosen
from rftd.streams.events.experiment import HeadRef
from rftd.streams.events.signal import SignalLost, SignalRegained
from rftd.streams.events.step import EvalCompleted, GenerationStarted
from rftd.streams.folds.commands import Commands
from rftd.streams.folds.key_use import VERBS
from rftd.streams.folds.requests import Requests
from rftd.streams.folds.snapshot import Snapshot, pack
from rftd.streams.folds.spine import Kept, Spine, Status
from rftd.streams.folds.sweeps import LABEL, Sweeps
from rftd.streams.log import topics
from rftd.streams.log.codec import place
from rftd.streams.log.effective import Ruling, ruling_if_ours
from rftd.streams.log.envelope import Head, Position, Record
from rftd.streams.log.feed import Feed
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.log import EventLog, start_of
from rftd.streams.log.requests import request_in
from rftd.streams.log.topics import Partition
from rftd.streams.spec.budgets import Budgets
from rftd.streams.spec.naming import Named, choose
from rftd.streams.spec.spec import ExperimentSpec

_READ: Final = frozenset({topics.EXPERIMENTS, topics.REQUESTS})
_KNOWN: Final = frozenset(
    {"eval.completed", "fence", "generation.started", "signal.lost", "signal.regained", "checkpoint.chosen"}
)
"""Types that are read beside life events; whoever asks why an experiment has failed is told what was lost before."""
_REQUESTS_AT_ONCE: Final = 500
_BESIDE: Final = (GenerationStarted, SignalLost, SignalRegained, CheckpointChosen)


class Entry(msgspec.Struct, kw_only=True):
    """One experiment."""

    id: UUID
    name: str
    job_dir: str
    submitted_ns: int
    spine_offset: int
    """The offset on the spine at which it was submitted."""
    fence: tuple[experiment.HeadRef, ...] = ()
    """The heads of the log that its newest fence remembers."""
    losses: set[experiment.HeadRef] = msgspec.field(default_factory=set)
    """The lost heads that somebody accepted."""
    spine: Spine
    scores: dict[str, dict[int, float]] = {}
    """The held-out scores of a run of a sweep, by taskset and weight version; the first of each counts."""
    unread: str = ""
    """The reason why its spine could not be folded; empty if it was."""

    @property
    def spec(self) -> ExperimentSpec:
        """The specification as it was submitted, by both halves if they are there."""
        assert self.spine.spec is not None
        return self.spine.spec

    @property
    def has_limits(self) -> bool:
        """True if the file of the experiment has section `limits`."""
        spec = self.spine.spec
        return spec is not None and spec.limits != Budgets()

    @property
    def status(self) -> Status | None:
        return self.spine.status


class Known(msgspec.Struct, kw_only=True):
    """The contents of a registry, for a snapshot."""

    entries: dict[UUID, Entry] = {}
    commands: Commands = msgspec.field(default_factory=Commands)
    requests: Requests = msgspec.field(default_factory=Requests)
    sweeps: Sweeps = msgspec.field(default_factory=Sweeps)


class Registry:
    """Reads life events and the trainers that began: payloads of plans and steps are not decoded."""

    def __init__(self, log: EventLog, folder: Path | None = None, *, logger: Logger | None = None) -> None:
        """A registry with a `folder` goes on from the newest snapshot there, and keeps one there."""
        self._partitions = [partition for partition in topics.TRUTH if partition.stream in _READ]
        self._log = log
        self.fences = FenceView()
        self._feed = Feed(log.subscribe(start_of(self._partitions)))
        self._known = Known()
        self._chains: dict[Partition, bytes] = {}
        self._folder = SnapshotFolder(folder) if folder is not None else None
        self._logger = logger or default_logger()
        self._resumed = folder is None
        self._unsaved = 0
        """Records since the newest snapshot."""

    @property
    def entries(self) -> dict[UUID, Entry]:
        """The experiments by id, in the order in which they were read."""
        return self._known.entries

    @property
    def commands(self) -> Commands:
        """The requests by key, with what each was used for."""
        return self._known.commands

    @property
    def requests(self) -> Requests:
        """The requests of other programs that nobody has answered yet."""
        return self._known.requests

    @property
    def sweeps(self) -> Sweeps:
        """The sweeps, each on a spine of its own, with an id that no experiment has."""
        return self._known.sweeps

    async def catch_up(self) -> None:
        """Reads everything up to the present heads."""
        if not self._resumed:
            await self._resume()
        await self._catch_up()
        await self._take_in_requests()
        if self._folder is not None and self._unsaved >= limits.SNAPSHOT_RECORDS:
            await self._save(self._folder)

    async def _resume(self) -> None:
        """Goes on from the newest snapshot, if one can be believed."""
        assert self._folder is not None
        found = await believed(
            self._log,
            self._folder,
            Snapshot[Known],
            experiment=None,
            partitions=self._partitions,
            logger=self._logger,
        )
        self._resumed = True
        if found is None:
            return
        await self._feed.close()
        self._feed = Feed(self._log.subscribe({**start_of(self._partitions), **found.positions}))
        self.fences = FenceView(found.fences)
        self._chains = {partition: mark.chain for partition, mark in found.heads().items()}
        # In place: whoever was given the entries before keeps looking at these.
        self.entries.update(found.parts.entries)
        self.commands.adopt(found.parts.commands)
        self._known.requests = found.parts.requests
        self._known.sweeps = found.parts.sweeps

    async def _save(self, folder: SnapshotFolder) -> None:
        self._unsaved = 0
        marks = tuple(
            HeadRef(partition.stream, partition.number, offset, self._chains.get(partition, b""))
            for partition, offset in sorted(self._feed.positions.items())
        )
        snapshot = Snapshot(experiment=None, marks=marks, fences=self.fences.owners(), parts=self._known)
        try:
            # Packed off the loop although the entries may change meanwhile: the caller holds the one reader, see
            # `Supervisor._refresh`.
            data = await asyncio.to_thread(pack, snapshot)
            await asyncio.to_thread(folder.write, data, sum(mark.next_offset for mark in marks))
        except OSError as error:
            self._logger.warning("snapshot.failed", path=str(folder.folder), reason=str(error))

    async def _catch_up(self) -> None:
        heads = await self._log.heads()
        # The heads are read once: a registry that followed a log which grows would never catch up.
        goals = {p: heads[p].next_offset for p in self._feed.positions if p in heads}
        while any(self._feed.positions[partition] < goal for partition, goal in goals.items()):
            await self.pump(1.0)

    async def _take_in_requests(self) -> None:
        """Reads on where a partition of requests was left because it had too many open ones."""
        requests = self.requests
        for number in list(requests.behind):
            partition = Partition(topics.REQUESTS, number)
            while number in requests.behind and requests.has_room(number):
                read = await self._log.read(partition, requests.behind[number], max_records=_REQUESTS_AT_ONCE)
                end = self._feed.positions[partition]
                del requests.behind[number]  # what lies beyond `end` is still to come
                for record in read:
                    if record.offset < end and (request := request_in(record)) is not None:
                        requests.arrive(record, request, self.commands)
                if number not in requests.behind and read and read[-1].offset + 1 < end:
                    requests.behind[number] = read[-1].offset + 1

    async def reach(self, position: Position) -> None:
        """Reads everything up to the present heads, and up to this record of theirs if it lies beyond."""
        await self.catch_up()
        partition, offset = position
        while self._feed.positions.get(partition, offset + 1) <= offset:
            await self.pump(1.0)

    async def pump(self, wait_s: float) -> int:
        """Reads what has arrived, waiting at most `wait_s`; returns how many records."""
        read = await self._feed.pump(wait_s, self._read)
        self._unsaved += read
        return read

    async def close(self) -> None:
        """Ends the subscription."""
        await self._feed.close()

    def position(self) -> dict[Partition, int]:
        """The next offset of each partition that has not been read."""
        return dict(self._feed.positions)

    def line(self) -> list[Entry]:
        """The experiments in the order of their turns: those that are under way, then those that wait."""
        return [*self.under_way(), *self.queue()]

    def under_way(self) -> list[Entry]:
        """Experiments that have begun and not ended, in the order in which they would be taken up again.

        Those whose workers were released are left out: they have no slot, and nothing is started for them.
        """
        held = (entry for entry in self.entries.values() if not entry.spine.released)
        return _in_order(held, Status.RUNNING, Status.PAUSED)

    def queue(self) -> list[Entry]:
        """Experiments that wait for their turn, the next first."""
        return _in_order(self.entries.values(), Status.QUEUED)

    def _read(self, record: Record) -> None:
        self._take(record)
        self._chains[record.partition] = record.chain

    def _take(self, record: Record) -> None:
        if (request := request_in(record)) is not None:
            self.requests.arrive(record, request, self.commands)
            return
        ruling = ruling_if_ours(record, self.fences, self._matters)
        if ruling is None:
            return
        if not _matters(ruling.decoded.head):
            self._pass_time(ruling)
            return
        self.commands.take(ruling)
        decoded = ruling.decoded
        head = decoded.head
        event = decoded.event
        if not ruling.effective or head.experiment is None:
            return
        self.requests.answer(decoded, self.commands)
        if _is_sweep(head):
            self.sweeps.apply(decoded)
            return
        known = self.entries.get(head.experiment)
        if known is not None and isinstance(event, experiment.Fence) and event.heads:
            known.fence = event.heads
        if isinstance(event, experiment.Fence | EvalCompleted):
            self._pass_time(ruling)
        if isinstance(event, EvalCompleted):
            if known is not None and LABEL in known.spec.labels:
                known.scores.setdefault(event.taskset, {}).setdefault(event.version, event.score)
            return
        if not _is_life(head) and not isinstance(event, _BESIDE):
            return
        if isinstance(event, experiment.ExperimentSubmitted) and head.experiment not in self.entries:
            self.entries[head.experiment] = Entry(
                id=head.experiment,
                name=event.spec.name,
                job_dir=event.spec.job_dir,
                submitted_ns=head.time_ns,
                spine_offset=record.offset,
                spine=Spine(),
            )
        if (entry := self.entries.get(head.experiment)) is not None:
            try:
                entry.spine.apply(decoded)
            except Exception as error:  # a record that cannot be folded is about its own experiment alone
                entry.unread = f"{type(error).__name__} in the record at {place(record)}"
            if isinstance(event, experiment.LossAccepted):
                entry.losses.update(lost.ref for lost in event.lost)

    def _matters(self, head: Head) -> bool:
        """True for what this fold takes in: of an experiment with budgets every record, as its time is counted."""
        entry = self.entries.get(head.experiment) if head.experiment is not None else None
        return _matters(head) or (entry is not None and entry.has_limits)

    def _pass_time(self, ruling: Ruling) -> None:
        """Counts the time up to a record that is not applied to the fold of its experiment."""
        head = ruling.decoded.head
        entry = self.entries.get(head.experiment) if head.experiment is not None else None
        if entry is not None and ruling.effective:
            entry.spine.spending.pass_time(ruling.decoded.event, head.time_ns)


def _is_life(head: Head) -> bool:
    return head.type.startswith("experiment.")


def _is_sweep(head: Head) -> bool:
    return head.type.startswith("sweep.")


def _matters(head: Head) -> bool:
    """True for life events, for fences, for trainers that began, for signals, and for what commands became."""
    command = head.correlation is not None and head.type in VERBS
    known = _is_life(head) or _is_sweep(head) or head.type in _KNOWN
    return head.experiment is not None and (known or command)


def _in_order(entries: Iterable[Entry], *states: Status) -> list[Entry]:
    """The experiments in one of the states, by priority, then in order of submission."""
    chosen = (each for each in entries if each.status in states)
    # The id last: two submissions of one nanosecond have the same order on every daemon.
    return sorted(chosen, key=lambda each: (-each.spine.priority, each.submitted_ns, each.id))


async def find_entry(log: EventLog, wanted: str) -> Entry:
    """The experiment that `wanted` names, by the log alone. Raises NotFoundError, UsageError."""
    return named_entry(await _read(log), wanted)


async def every_entry(log: EventLog) -> list[Entry]:
    """Every experiment whose files are in its folder, by the log alone."""
    registry = await _read(log)
    return [entry for entry in registry.entries.values() if entry.spine.kept is Kept.HERE]


async def _read(log: EventLog) -> Registry:
    registry = Registry(log)
    try:
        await registry.catch_up()
    finally:
        await registry.close()
    return registry


def named_entry(registry: Registry, wanted: str) -> Entry:
    """The experiment that `wanted` names, among those that the registry has read. Raises NotFoundError, UsageError."""
    known = sorted(registry.entries.values(), key=lambda entry: (entry.submitted_ns, entry.id))
    named = [Named(entry.id, entry.name, entry.spine.kept is Kept.REMOVED) for entry in known]
    return registry.entries[choose(named, wanted)]
