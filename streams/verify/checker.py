"""`verify`: a whole log, each record read once, compared with the rules (`rftd verify`).

The checker decodes and fences without `rftd.streams.log.effective`, on purpose: the checker has to count and to name
the records silently skipped by other readers (void records, repetitions, foreign records).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

from rftd.ops.errors import CodecError
from rftd.streams.events.batch import BatchAbandoned, BatchPlanned
from rftd.streams.events.catalogue import UnknownVersionError, definitions
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.experiment import Fence
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.letters import Letters
from rftd.streams.log import topics
from rftd.streams.log.chain import GENESIS, Heads, link
from rftd.streams.log.codec import decode_as, place
from rftd.streams.log.deadletters import decode_ours, head_of
from rftd.streams.log.envelope import Decoded, Head, Position, Record, Stretch
from rftd.streams.log.fencing import FenceView, Role
from rftd.streams.log.log import EventLog
from rftd.streams.log.lost_records import Life, Loss, unsettled
from rftd.streams.log.requests import is_request
from rftd.streams.log.topics import Partition
from rftd.streams.verify import announcements, answers, rollouts, spine, tasks
from rftd.streams.verify.books import balance
from rftd.streams.verify.evidence import Evidence
from rftd.streams.verify.facts import Facts
from rftd.streams.verify.forks import judge_fork, share_rows
from rftd.streams.verify.heads import HeadsRemembered
from rftd.streams.verify.holders import Holders
from rftd.streams.verify.identities import Identities
from rftd.streams.verify.marks import Work, judged
from rftd.streams.verify.outside import Look, look_at
from rftd.streams.verify.reading import LogReading
from rftd.streams.verify.report import VerifiedExperiment, VerifyReport
from rftd.streams.verify.rules import JUDGES, weights_were_activated
from rftd.streams.verify.scratch import Scratch
from rftd.streams.verify.verdicts import dead_letters, judge_verdicts

HANDLERS: Final[dict[type, Callable[[Facts, Evidence, Any, Decoded], None]]] = {
    **rollouts.HANDLERS,
    **tasks.HANDLERS,
    **spine.HANDLERS,
    **announcements.HANDLERS,
    **answers.HANDLERS,
}
"""The function called with each record, by type of event, of all rules."""
_ORDER: Final = (
    topics.EXPERIENCES,
    topics.TASKS,
    topics.EXPERIMENTS,
    topics.WEIGHTS,
    topics.CHECKPOINTS,
    topics.WORKERS,
    topics.DEADLETTERS,
    topics.REQUESTS,
)
"""The streams in reading order: named records are read before the ones naming them."""
_TYPES_WITHOUT_ROLE: Final = frozenset(
    definition.kind for definition in definitions() if not definition.owner and not definition.anywhere
)
"""The types of events written without a role, except those allowed in every stream."""


async def verify(
    log: EventLog,
    *,
    losses: Iterable[Loss] = (),
    chained: bool = True,
    scratch: Path | None = None,
    look: Look | None = None,
) -> VerifyReport:
    """Checks a log: chains, envelopes, and every rule for every experiment; returns the findings.

    `losses` are heads remembered by files or processes and missing in the log. A log not `chained` is on Kafka, where
    each record carries a digest of itself alone. The data kept of each record lies in a temporary file in the folder
    `scratch`. With `look` the files named by events are checked too. A damaged record is a finding, and the records
    after it are read; raises LogCorruptError if the log cannot be read at all.
    """
    storage = Scratch(scratch)
    try:
        checker = Checker(log, storage, chained=chained, files=look is not None)
        await checker.read_all()
        await checker.judge(losses)
        if look is not None:
            await checker.look_outside(look)
        return checker.report()
    finally:
        storage.close()


class Checker:
    """One check of one log, with the facts and evidence of every experiment."""

    def __init__(self, log: EventLog, scratch: Scratch, *, chained: bool, files: bool) -> None:
        """Prepares a check.

        `chained`: the log's records form a chain, so their offsets have no gaps. `files`: files outside of the log are
        checked too.
        """
        self.facts = Facts(scratch, chained=chained, files=files)
        self.evidences: list[Evidence] = []
        self._reading = LogReading(log, self.facts.ends)
        self._chained = chained
        self._identities = Identities(scratch)
        self._heads = HeadsRemembered(scratch)
        self._fences = FenceView()
        self._holders = Holders()
        self._by_id: dict[int, Evidence] = {}
        self._letters = Letters()
        self._dead: dict[str, str] = {}
        """Reason for skipping each foreign record, by position."""
        self._records = 0
        self._repeated = 0
        self._chain: bytes | None = GENESIS
        """Chain of the last record read in the partition; None after an unreadable one."""
        self._expected = 0
        """Offset of the next record expected in the partition."""
        self._gaps: list[Stretch] = []
        """Offsets without a record in the partition, still to be examined."""

    async def read_all(self) -> None:
        """Reads every partition that keeps all records, each up to an end fixed at the beginning, so that experiences
        and groups named by plans, and weights named by steps, lie below the ends of their partitions.
        """
        # The ends are taken in the opposite order of the reading: during concurrent writes, the groups of a plan below
        # the end must lie below the end of groups, and likewise for experiences.
        log = self._reading.log
        self.facts.leased_below = {
            partition: mark.next_offset
            for partition, mark in (await log.heads()).items()
            if partition.stream == topics.EXPERIENCES
        }
        for stream in reversed(_ORDER[:3]):
            self._cut(await log.heads(), stream)
        heads = await log.heads()
        for stream in _ORDER[3:]:
            self._cut(heads, stream)
        for stream in _ORDER:
            for number in range(topics.TOPICS[stream].partitions):
                await self._read(Partition(stream, number))

    def _cut(self, heads: Heads, stream: str) -> None:
        """Ends the check of a stream at these heads: records above them are not read."""
        for partition, mark in heads.items():
            if partition.stream == stream:
                self.facts.ends[partition] = mark.next_offset

    async def _read(self, partition: Partition) -> None:
        """Reads one partition from its first record to its end, past damaged records, and handles each."""
        self._chain = GENESIS
        self._expected = 0

        def damaged(first: int, end: int, fault: str) -> None:
            also = f", and so is everything below {end}" if end - first > 1 else ""
            self.facts.note("undamaged", None, fault + also)
            self._chain = None  # the next record's link cannot be judged: the damage is one finding, not two
            self._expected = end

        async for records in self._reading.records(partition, damaged):
            for record in records:
                work = self._take(record)
                if work is not None:
                    await work()
            await self._note_gaps(partition)
        if not self._chained:
            self._gaps.append(Stretch(self._expected, self.facts.ends.get(partition, 0)))
            await self._note_gaps(partition)

    def _take(self, record: Record) -> Work | None:
        """Checks one record. Returns further work reading other records again, to be done before the next record."""
        self._records += 1
        partition = record.partition
        offset = record.offset
        self._link(record)
        self._heads.note(partition, offset, record.chain)
        try:
            decoded = decode_ours(record)
        except CodecError as error:
            self._left_out(record, error)
            return None
        head = decoded.head
        event = decoded.event
        if record.thin and type(event) is not ExperienceProduced:
            self.facts.note("chain", None, f"{place(record)} lost its payload, as a {head.type} never does")
        first = self._identities.first(head.id.bytes, partition, offset)
        if first is not None:
            return partial(self._again, record, head, Position(partition, first))
        if head.experiment is None:
            self._letters.apply(event, head.time_ns)
            return None
        evidence = self._by_id.get(head.experiment.int)
        if evidence is None:
            evidence = self._by_id[head.experiment.int] = Evidence(head.experiment, len(self.evidences))
            self.evidences.append(evidence)
        if partition.stream == topics.EXPERIMENTS:
            evidence.trail.take(record)
        if not self._admitted(record, decoded, evidence):
            evidence.void += 1
            return None
        if type(event) is BatchAbandoned:
            return partial(self._abandon, evidence, event)
        handler = HANDLERS.get(type(event))
        if handler is not None:
            handler(self.facts, evidence, event, decoded)
        if type(event) is StepCompleted:
            announcements.named_by_step(self.facts, evidence, event)
        if type(event) is StepCompleted and event.spine is not None:
            return judged(self._reading.log, self.facts, evidence, event, record.offset)
        return None

    async def _abandon(self, evidence: Evidence, event: BatchAbandoned) -> None:
        """Handles an abandoned batch with its plan, which is read again if not among the recent ones."""
        plan = evidence.recent_plans.get(event.step) or await self._plan_at(evidence, event.step)
        spine.abandoned(self.facts, evidence, event, plan)

    def _left_out(self, record: Record, error: CodecError) -> None:
        """Notes a record without an event of this release: foreign, a request of another program, or readable only by a
        newer release.
        """
        if isinstance(error, UnknownVersionError):
            self.facts.note("readable", None, f"{place(record)}: {error.what}")
        elif not is_request(record):
            self._dead[place(record)] = error.what
        head = head_of(record) if record.partition.stream == topics.EXPERIMENTS else None
        evidence = self._by_id.get(head.experiment.int) if head is not None and head.experiment is not None else None
        # A digest of the spine is over bytes: a trainer of the newer release included this record in its digest.
        if evidence is not None and evidence.spine == record.partition:
            evidence.trail.take(record)

    def _link(self, record: Record) -> None:
        """Compares a record's offset and chain with the record before; a gap is a finding in a chained log, and
        otherwise noted for `_note_gaps`.
        """
        if record.offset != self._expected and self._chained:
            finding = f"{record.partition}: offset {record.offset} follows {self._expected - 1}"
            self.facts.note("gapless", None, finding)
        elif record.offset > self._expected:
            self._gaps.append(Stretch(self._expected, record.offset))
        previous_chain = self._chain if self._chained else GENESIS
        # The chain covers the payload missing from a thin record: its row's checksum stands for it.
        if previous_chain is not None and not record.thin:
            chain = link(previous_chain, record.head, record.value)
            if chain != record.chain:
                self.facts.note("chain", None, f"{place(record)} does not continue the hash chain")
        self._chain = record.chain
        self._expected = record.offset + 1

    async def _note_gaps(self, partition: Partition) -> None:
        """Notes missing offsets on Kafka, where offsets are dense except for the log's own omissions."""
        for first, end in self._gaps:
            missing_count = await self._reading.gone(partition, first, end)
            if missing_count > 0:
                finding = f"{missing_count} of the records {first} to {end - 1} of {partition} are gone"
                self.facts.note("gapless", None, f"{finding}: deleted, or compacted away")
        self._gaps.clear()

    def _admitted(self, record: Record, decoded: Decoded, evidence: Evidence) -> bool:
        """True unless a fence made the record void. Stores the heads remembered by fences and checkpoints."""
        head = decoded.head
        event = decoded.event
        partition = record.partition
        if type(event) in _TYPES_WITHOUT_ROLE and not head.role:  # most records: experiences need no look at fences
            return True
        if isinstance(event, Fence | CheckpointCommitted):
            self._heads.remember(event.heads, head.type, partition, record.offset)
        objection = self._holders.objection(decoded, self._fences.epoch(partition, Role(head.experiment, head.role)))
        if objection:
            self.facts.note("fences-come-first", evidence.id, f"{head.type} at {place(record)} {objection}")
        elif isinstance(event, answers.LEASES):
            answers.lease_given(self.facts, evidence, event)
        if not self._fences.admit(partition, head, event):
            return False
        if isinstance(event, Fence):
            if event.role == "trainer":
                evidence.trainer_fences.append((event.owner, place(record)))
            else:
                evidence.fence_owners.setdefault(event.role, set()).add(event.owner)
        return True

    async def _again(self, record: Record, head: Head, first: Position) -> None:
        """Handles a repeated record, without effect: only Kafka may repeat one, unchanged and in its partition."""
        finding = f"{place(record)}: event {head.id} is in the log twice, at {first}"
        if self._chained or first.partition != record.partition:
            self.facts.note("unique", head.experiment, finding)
            return
        self._repeated += 1
        original = await self._reading.record(*first)
        if original is not None and (original.head, original.value) != (record.head, record.value):
            self.facts.note("unique", head.experiment, f"{finding} with other content: another program took its id")

    async def judge(self, losses: Iterable[Loss] = ()) -> None:
        """Applies the rules that need all records; `losses` are heads remembered outside the log and missing in it."""
        facts = self.facts
        await self._find_repetitions()
        await self._judge_losses(losses)
        await judge_verdicts(facts, self._letters, self._identities, self._reading.record)
        # Parents may be read after forks: partitions of the spine are read by number.
        for evidence in self.evidences:
            if evidence.forked is not None:
                evidence.parent = self._by_id.get(evidence.forked.parent.int)
        balance(facts, self.evidences)  # first: the rules below read its sums
        for evidence in self.evidences:
            if evidence.spec is None and evidence.state == "rejected":
                continue  # another program's request was refused: no experiment came of it
            if evidence.spec is None and evidence.state == spine.SWEEP:
                continue
            if evidence.spec is None:
                finding = f"experiment {evidence.id} has events and was never submitted"
                facts.note("submitted", evidence.id, finding)
                continue
            await share_rows(facts, evidence, self._plan_at)
            for rule, judge in JUDGES:
                for finding in judge(facts, evidence):
                    facts.note(rule, evidence.id, finding)
            await judge_fork(facts, evidence, self._plan_at)
        weights_were_activated(facts, self.evidences)
        announcements.judge_announcements(facts, self.evidences)
        await answers.judge_answers(facts, self.evidences, self._reading.record)

    async def look_outside(self, look: Look) -> None:
        """Checks the files named by events with `look`, for experiments whose files are not archived or removed."""
        for evidence in self.evidences:
            if evidence.spec is not None and evidence.files_here:
                await look_at(self._reading.log, self.facts, evidence, look)

    def report(self) -> VerifyReport:
        """Returns the outcome of the check: findings, counts and accepted losses."""
        facts = self.facts
        return VerifyReport(
            records=self._records,
            findings=tuple(facts.findings),
            experiments=tuple(summary(evidence) for evidence in self.evidences if evidence.spec),
            dead_letters=dead_letters(self._letters, self._dead),
            repeated=self._repeated,
            left_out=dict(facts.left_out),
            accepted_losses=tuple(loss for evidence in self.evidences for loss in evidence.accepted_losses),
        )

    async def _judge_losses(self, losses: Iterable[Loss]) -> None:
        """Notes remembered heads missing from the log, unless a person let the experiments continue without them."""
        lost_heads = {loss.head.ref: loss for loss in losses}
        for loss, present in self._heads.wrong():
            # A record unread at its position may exist by now, or may have been truncated: the log knows.
            if present or not await self._reading.holds({loss.partition: loss.mark}):
                lost_heads.setdefault(loss.head.ref, loss)
        lives = [
            Life(evidence.id, evidence.ended, evidence.losses_accepted)
            for evidence in self.evidences
            if evidence.spec is not None
        ]
        for loss, stopped in unsettled(lost_heads.values(), lives):
            self.facts.note("heads-remembered", stopped[0] if len(stopped) == 1 else None, loss.what)

    async def _find_repetitions(self) -> None:
        """Notes the repetitions too far apart for recognition during the reading."""
        for pair in self._identities.twice():
            first, again = [await self._reading.record(*position) for position in pair]
            if first is None or again is None:
                continue
            head = head_of(again)
            first_head = head_of(first)
            if head is not None and first_head is not None and head.id == first_head.id:
                await self._again(again, head, Position(first.partition, first.offset))

    async def _plan_at(self, evidence: Evidence, step: int) -> BatchPlanned | None:
        """Reads the plan of a step again; None if the log has none."""
        offset = evidence.plan_place(self.facts, step)
        record = await self._reading.record(evidence.spine, offset) if offset is not None else None
        return decode_as(record, BatchPlanned) if record is not None else None


def summary(evidence: Evidence) -> VerifiedExperiment:
    """Returns the counts of one experiment, for the report."""
    assert evidence.spec is not None
    return VerifiedExperiment(
        experiment=evidence.id,
        name=evidence.spec.name,
        state=evidence.state,
        produced=evidence.members,
        planned=evidence.planned,
        retired_after_use=evidence.retired_after_use,
        waiting=evidence.waiting,
        retired=dict(evidence.retired),
        late=evidence.late,
        steps=evidence.steps_executed,
        executions=evidence.executions,
        generations=len(evidence.generations),
        groups=evidence.groups_closed,
        void=evidence.void,
        not_looked_at=evidence.not_looked_at,
    )
