"""`Registry`: every experiment in the log, by state and in order of submission: a fold of life events and
of requests.
"""

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
from rftd.streams.events.experiment import CheckpointChosen, HeadRef, SignalLost, SignalRegained
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
from rftd.streams.spec.naming import Named, choose
from rftd.streams.spec.sections import Budgets
from rftd.streams.spec.spec import ExperimentSpec

_READ: Final = frozenset({topics.EXPERIMENTS, topics.REQUESTS})
"""Streams read by the registry: life events with commands, and requests of other programs."""
_READ_TYPES: Final = frozenset(
    {"eval.completed", "fence", "generation.started", "signal.lost", "signal.regained", "checkpoint.chosen"}
)
"""Event types read besides life events; for a failed experiment, `rftd why` also reports earlier losses."""
_REQUESTS_PER_READ: Final = 500
"""Maximum number of records read at once from a partition of requests left behind."""
_FOLDED_TYPES: Final = (GenerationStarted, SignalLost, SignalRegained, CheckpointChosen)
"""Event types folded into the spine in addition to `experiment.*`."""


class Entry(msgspec.Struct, kw_only=True):
    """One experiment in the registry: its name, folder and spine, with everything needed before its run is folded."""

    id: UUID
    """Id of the experiment."""
    name: str
    """Name of the experiment."""
    job_dir: str
    """Absolute path of the experiment's folder."""
    submitted_ns: int
    """Time of the submission, in nanoseconds since 1970."""
    spine_offset: int
    """Offset of the submission on the spine."""
    fence: tuple[experiment.HeadRef, ...] = ()
    """Heads of all partitions recorded in the experiment's newest fence, for the loss check."""
    losses: set[experiment.HeadRef] = msgspec.field(default_factory=set)
    """Heads whose loss an operator has accepted for this experiment."""
    spine: Spine
    """Folded life of the experiment."""
    scores: dict[str, dict[int, float]] = {}
    """Held-out scores of a sweep's run, by taskset and weight version; the first score of each version counts."""
    unread: str = ""
    """Reason why the experiment's life could not be folded; empty normally."""

    @property
    def spec(self) -> ExperimentSpec:
        """The specification as submitted, joined from both halves once both exist."""
        assert self.spine.spec is not None
        return self.spine.spec

    @property
    def has_limits(self) -> bool:
        """True if the experiment's file sets `limits`."""
        spec = self.spine.spec
        return spec is not None and spec.limits != Budgets()

    @property
    def status(self) -> Status | None:
        """Status of the experiment; None for a submission not accepted or refused yet."""
        return self.spine.status


class Known(msgspec.Struct, kw_only=True):
    """The folded contents of a registry, as written to a snapshot file."""

    entries: dict[UUID, Entry] = {}
    """Experiments by id."""
    commands: Commands = msgspec.field(default_factory=Commands)
    """Uses of request keys."""
    requests: Requests = msgspec.field(default_factory=Requests)
    """Open requests of other programs."""
    sweeps: Sweeps = msgspec.field(default_factory=Sweeps)
    """Sweeps by id."""


class Registry:
    """Folds the life events of every experiment; payloads of plans and steps are not decoded."""

    def __init__(self, log: EventLog, folder: Path | None = None, *, logger: Logger | None = None) -> None:
        """With a `folder`, the registry continues from its newest snapshot and writes new snapshots there."""
        self._partitions = [partition for partition in topics.TRUTH if partition.stream in _READ]
        """Partitions followed by the registry."""
        self._log = log
        self.fences = FenceView()
        """Newest fence of each role, to tell voided records."""
        self._feed = Feed(log.subscribe(start_of(self._partitions)))
        """Subscription to the followed partitions."""
        self._known = Known()
        """Folded contents of the registry, written to snapshots."""
        self._chains: dict[Partition, bytes] = {}
        """Chain value of the last record read in each partition."""
        self._folder = SnapshotFolder(folder) if folder is not None else None
        """Folder of snapshots; None: none are written."""
        self._logger = logger or default_logger()
        self._resumed = folder is None
        """True once a snapshot was looked for."""
        self._unsaved = 0
        """Number of records since the newest snapshot."""

    @property
    def entries(self) -> dict[UUID, Entry]:
        """The experiments by id, in the order of reading their submissions."""
        return self._known.entries

    @property
    def commands(self) -> Commands:
        """Commands by request key, with the use of each key."""
        return self._known.commands

    @property
    def requests(self) -> Requests:
        """Requests of other programs, sent as records and not answered yet."""
        return self._known.requests

    @property
    def sweeps(self) -> Sweeps:
        """The sweeps, each on a spine and under an id not used by any experiment."""
        return self._known.sweeps

    async def catch_up(self) -> None:
        """Reads everything up to the present heads, and writes a snapshot after many records."""
        if not self._resumed:
            await self._resume()
        await self._catch_up()
        await self._read_requests_behind()
        if self._folder is not None and self._unsaved >= limits.SNAPSHOT_RECORDS:
            await self._save(self._folder)

    async def _resume(self) -> None:
        """Continues from the newest snapshot, if a trustworthy one exists."""
        assert self._folder is not None
        snapshot = await believed(
            self._log,
            self._folder,
            Snapshot[Known],
            experiment=None,
            partitions=self._partitions,
            logger=self._logger,
        )
        self._resumed = True
        if snapshot is None:
            return
        await self._feed.close()
        self._feed = Feed(self._log.subscribe({**start_of(self._partitions), **snapshot.positions}))
        self.fences = FenceView(snapshot.fences)
        self._chains = {partition: mark.chain for partition, mark in snapshot.heads().items()}
        # In place: callers already holding the mapping keep reading the same object.
        self.entries.update(snapshot.parts.entries)
        self.commands.adopt(snapshot.parts.commands)
        self._known.requests = snapshot.parts.requests
        self._known.sweeps = snapshot.parts.sweeps

    async def _save(self, folder: SnapshotFolder) -> None:
        """Writes a snapshot of everything read; a failed write is logged."""
        self._unsaved = 0
        marks = tuple(
            HeadRef(partition.stream, partition.number, offset, self._chains.get(partition, b""))
            for partition, offset in sorted(self._feed.positions.items())
        )
        snapshot = Snapshot(experiment=None, marks=marks, fences=self.fences.owners(), parts=self._known)
        try:
            # Packed off the event loop although the experiments may change meanwhile: the caller holds the only reader,
            # see `Supervisor._refresh`.
            packed = await asyncio.to_thread(pack, snapshot)
            await asyncio.to_thread(folder.write, packed, sum(mark.next_offset for mark in marks))
        except OSError as error:
            self._logger.warning("snapshot.failed", path=str(folder.folder), reason=str(error))

    async def _catch_up(self) -> None:
        """Reads every partition up to its head at the time of the call."""
        heads = await self._log.heads()
        # The heads are read once: a registry following a growing log would never catch up.
        goals = {p: heads[p].next_offset for p in self._feed.positions if p in heads}
        while any(self._feed.positions[partition] < goal for partition, goal in goals.items()):
            await self.pump(1.0)

    async def _read_requests_behind(self) -> None:
        """Continues partitions of requests left behind because of too many open requests."""
        requests = self.requests
        for number in list(requests.behind):
            partition = Partition(topics.REQUESTS, number)
            while number in requests.behind and requests.has_room(number):
                read = await self._log.read(partition, requests.behind[number], max_records=_REQUESTS_PER_READ)
                end = self._feed.positions[partition]
                del requests.behind[number]  # records beyond `end` are still to come
                for record in read:
                    if record.offset < end and (request := request_in(record)) is not None:
                        requests.arrive(record, request, self.commands)
                if number not in requests.behind and read and read[-1].offset + 1 < end:
                    requests.behind[number] = read[-1].offset + 1

    async def reach(self, position: Position) -> None:
        """Reads every record up to the present heads, and at least up to `position`."""
        await self.catch_up()
        partition, offset = position
        while self._feed.positions.get(partition, offset + 1) <= offset:
            await self.pump(1.0)

    async def pump(self, wait_s: float) -> int:
        """Folds newly arrived records, waiting at most `wait_s` seconds for the first; returns their number."""
        read = await self._feed.pump(wait_s, self._read_record)
        self._unsaved += read
        return read

    async def close(self) -> None:
        """Ends the subscription to the log; the folded state stays readable."""
        await self._feed.close()

    def position(self) -> dict[Partition, int]:
        """Returns the next unread offset of each partition followed by the registry."""
        return dict(self._feed.positions)

    def line(self) -> list[Entry]:
        """Returns the experiments in starting order: running ones first, then the queue."""
        return [*self.under_way(), *self.queue()]

    def under_way(self) -> list[Entry]:
        """Returns experiments started and not ended, in the order in which a restarted daemon resumes them.

        Experiments with released workers are left out, because they need no slot.
        """
        unreleased = (entry for entry in self.entries.values() if not entry.spine.released)
        return _in_order(unreleased, Status.RUNNING, Status.PAUSED)

    def queue(self) -> list[Entry]:
        """Returns queued experiments, the next one first."""
        return _in_order(self.entries.values(), Status.QUEUED)

    def _read_record(self, record: Record) -> None:
        """Folds one record, and remembers its chain value."""
        self._fold(record)
        self._chains[record.partition] = record.chain

    def _fold(self, record: Record) -> None:
        """Applies one record to requests, commands, sweeps or the experiment's entry; voided records change nothing."""
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
        entry_before = self.entries.get(head.experiment)
        if entry_before is not None and isinstance(event, experiment.Fence) and event.heads:
            entry_before.fence = event.heads
        if isinstance(event, experiment.Fence | EvalCompleted):
            self._pass_time(ruling)
        if isinstance(event, EvalCompleted):
            if entry_before is not None and LABEL in entry_before.spec.labels:
                entry_before.scores.setdefault(event.taskset, {}).setdefault(event.version, event.score)
            return
        if not _is_life(head) and not isinstance(event, _FOLDED_TYPES):
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
        """True for records folded here; for an experiment with budgets every record, because of the elapsed time."""
        entry = self.entries.get(head.experiment) if head.experiment is not None else None
        return _matters(head) or (entry is not None and entry.has_limits)

    def _pass_time(self, ruling: Ruling) -> None:
        """Counts the time up to a record not applied to the experiment's fold."""
        head = ruling.decoded.head
        entry = self.entries.get(head.experiment) if head.experiment is not None else None
        if entry is not None and ruling.effective:
            entry.spine.spending.pass_time(ruling.decoded.event, head.time_ns)


def _is_life(head: Head) -> bool:
    """True for an event of an experiment's life."""
    return head.type.startswith("experiment.")


def _is_sweep(head: Head) -> bool:
    """True for an event of a sweep."""
    return head.type.startswith("sweep.")


def _matters(head: Head) -> bool:
    """True for life events, sweep events, fences, new trainer generations, learning-signal events, and events recording
    commands.
    """
    command = head.correlation is not None and head.type in VERBS
    read_type = _is_life(head) or _is_sweep(head) or head.type in _READ_TYPES
    return head.experiment is not None and (read_type or command)


def _in_order(entries: Iterable[Entry], *states: Status) -> list[Entry]:
    """Returns the experiments in any of the states, by priority, then by order of submission."""
    matching = (candidate for candidate in entries if candidate.status in states)
    # The id last: two submissions within one nanosecond have the same order on every daemon.
    return sorted(matching, key=lambda candidate: (-candidate.spine.priority, candidate.submitted_ns, candidate.id))


async def find_entry(log: EventLog, name_or_id: str) -> Entry:
    """Returns the experiment with this name or id, by the log alone. Raises NotFoundError, UsageError."""
    return named_entry(await _read_registry(log), name_or_id)


async def every_entry(log: EventLog) -> list[Entry]:
    """Returns every experiment with files in its folder, by the log alone."""
    registry = await _read_registry(log)
    return [entry for entry in registry.entries.values() if entry.spine.kept is Kept.HERE]


async def _read_registry(log: EventLog) -> Registry:
    """Folds a whole log into a registry, and ends its subscription: a state of this moment."""
    registry = Registry(log)
    try:
        await registry.catch_up()
    finally:
        await registry.close()
    return registry


def named_entry(registry: Registry, name_or_id: str) -> Entry:
    """Returns the registry's experiment with this name or id. Raises NotFoundError, UsageError."""
    submitted = sorted(registry.entries.values(), key=lambda entry: (entry.submitted_ns, entry.id))
    named = [Named(entry.id, entry.name, entry.spine.kept is Kept.REMOVED) for entry in submitted]
    return registry.entries[choose(named, name_or_id)]
