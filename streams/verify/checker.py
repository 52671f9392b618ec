"""`verify`: a whole log, each record read once, held against the rules (`rftd verify`).

The checker decodes and fences by itself instead of through `rftd.streams.log.effective`, on purpose: what other readers
leave out without a word (void records, repetitions, foreign records) it has to count and to name.
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
from rftd.streams.log.losses import Life, Loss, unsettled
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
"""The streams in reading order: records that are named are read before those that name them."""
_OF_NOBODY: Final = frozenset(each.kind for each in definitions() if not each.owner and not each.anywhere)
"""The types whose records need no role."""


async def verify(
    log: EventLog,
    *,
    losses: Iterable[Loss] = (),
    chained: bool = True,
    scratch: Path | None = None,
    look: Look | None = None,
) -> VerifyReport:
    """The findings on a log: chains, envelopes, and every rule for every experiment.

    `losses` are what survivors outside the log remember and it does not hold. Not `chained` is a log on Kafka, where
    each record carries a digest of itself alone. What is kept of each record lies in a temporary file in the folder
    `scratch`. With `look` the files that events name are looked at too. A record that is damaged is a finding, and what
    follows it is read; raises LogCorruptError where the log cannot be read at all.
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
    """One check of one log."""

    def __init__(self, log: EventLog, scratch: Scratch, *, chained: bool, files: bool) -> None:
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
        """The reason why a foreign record is left out, by its place."""
        self._records = 0
        self._repeated = 0
        self._chain: bytes | None = GENESIS
        """The chain of the partition's last record; None after one that could not be read."""
        self._expected = 0
        """The offset that is due next in the partition."""
        self._gaps: list[Stretch] = []
        """The offsets of the partition that no record came from, and that are still to be looked into."""

    async def read_all(self) -> None:
        """Reads every partition of truth, each up to an end that holds all that those with earlier ends may name."""
        # The ends are taken in the opposite order of the reading: somebody may be writing, and a plan within its end
        # must find its groups, and these their experiences, within theirs.
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
        for partition, mark in heads.items():
            if partition.stream == stream:
                self.facts.ends[partition] = mark.next_offset

    async def _read(self, partition: Partition) -> None:
        self._chain = GENESIS
        self._expected = 0

        def damaged(first: int, end: int, what: str) -> None:
            also = f", and so is everything below {end}" if end - first > 1 else ""
            self.facts.note("undamaged", None, what + also)
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
        """Takes in one record. Returns work that reads others again, to be done before the next one."""
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
        plan = evidence.recent_plans.get(event.step) or await self._plan_at(evidence, event.step)
        spine.abandoned(self.facts, evidence, event, plan)

    def _left_out(self, record: Record, error: CodecError) -> None:
        """Takes in a foreign record, or one that only a newer release can read."""
        if isinstance(error, UnknownVersionError):
            self.facts.note("readable", None, f"{place(record)}: {error.what}")
        elif not is_request(record):
            self._dead[place(record)] = error.what
        head = head_of(record) if record.partition.stream == topics.EXPERIMENTS else None
        evidence = self._by_id.get(head.experiment.int) if head is not None and head.experiment is not None else None
        # A digest of the spine is over bytes: a trainer of that newer release had this record in its own.
        if evidence is not None and evidence.spine == record.partition:
            evidence.trail.take(record)

    def _link(self, record: Record) -> None:
        if record.offset != self._expected and self._chained:
            what = f"{record.partition}: offset {record.offset} follows {self._expected - 1}"
            self.facts.note("gapless", None, what)
        elif record.offset > self._expected:
            self._gaps.append(Stretch(self._expected, record.offset))
        before = self._chain if self._chained else GENESIS
        # The chain covers the payload, which a thin record has no more: its row's checksum stands for it.
        if before is not None and not record.thin:
            chain = link(before, record.head, record.value)
            if chain != record.chain:
                self.facts.note("chain", None, f"{place(record)} does not continue the hash chain")
        self._chain = record.chain
        self._expected = record.offset + 1

    async def _note_gaps(self, partition: Partition) -> None:
        """Notes missing offsets on Kafka, where they are dense but for what the log itself leaves out."""
        for first, end in self._gaps:
            gone = await self._reading.gone(partition, first, end)
            if gone > 0:
                what = f"{gone} of the records {first} to {end - 1} of {partition} are gone"
                self.facts.note("gapless", None, f"{what}: deleted, or compacted away")
        self._gaps.clear()

    def _admitted(self, record: Record, decoded: Decoded, evidence: Evidence) -> bool:
        """True unless a fence made the record void. Takes in what fences and checkpoints remember."""
        head = decoded.head
        event = decoded.event
        partition = record.partition
        if type(event) in _OF_NOBODY and not head.role:  # most records: experiences need no look at fences
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
        """Takes in a repeated record, which has no effect: only Kafka may repeat one, in its partition, as it was."""
        what = f"{place(record)}: event {head.id} is in the log twice, at {first}"
        if self._chained or first.partition != record.partition:
            self.facts.note("unique", head.experiment, what)
            return
        self._repeated += 1
        original = await self._reading.record(*first)
        if original is not None and (original.head, original.value) != (record.head, record.value):
            self.facts.note("unique", head.experiment, f"{what} with other content: another program took its id")

    async def judge(self, losses: Iterable[Loss] = ()) -> None:
        """Holds what was read against the rules that need all of it."""
        facts = self.facts
        await self._find_repetitions()
        await self._judge_losses(losses)
        await judge_verdicts(facts, self._letters, self._identities, self._reading.record)
        # Parents may be read after their forks: partitions of the spine come by their numbers.
        for evidence in self.evidences:
            if evidence.forked is not None:
                evidence.parent = self._by_id.get(evidence.forked.parent.int)
        balance(facts, self.evidences)  # first: the rules below read the sums that it leaves
        for evidence in self.evidences:
            if evidence.spec is None and evidence.state == "rejected":
                continue  # another program asked for something and was refused: no experiment came of it
            if evidence.spec is None and evidence.state == spine.SWEEP:
                continue
            if evidence.spec is None:
                what = f"experiment {evidence.id} has events and was never submitted"
                facts.note("submitted", evidence.id, what)
                continue
            await share_rows(facts, evidence, self._plan_at)
            for rule, judge in JUDGES:
                for what in judge(facts, evidence):
                    facts.note(rule, evidence.id, what)
            await judge_fork(facts, evidence, self._plan_at)
        weights_were_activated(facts, self.evidences)
        announcements.judge_announcements(facts, self.evidences)
        await answers.judge_answers(facts, self.evidences, self._reading.record)

    async def look_outside(self, look: Look) -> None:
        """Looks at the files that events name, of experiments whose files are in their folder."""
        for evidence in self.evidences:
            if evidence.spec is not None and evidence.files_here:
                await look_at(self._reading.log, self.facts, evidence, look)

    def report(self) -> VerifyReport:
        """The outcome of the check."""
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
        """Notes heads that are remembered and not there, unless a person let their experiments go on without them."""
        found = {loss.head.ref: loss for loss in losses}
        for loss, there in self._heads.wrong():
            # What was not read at its place may be there by now, or may be what a truncation took: the log knows.
            if there or not await self._reading.holds({loss.partition: loss.mark}):
                found.setdefault(loss.head.ref, loss)
        lives = [Life(each.id, each.ended, each.losses_accepted) for each in self.evidences if each.spec is not None]
        for loss, stopped in unsettled(found.values(), lives):
            self.facts.note("heads-remembered", stopped[0] if len(stopped) == 1 else None, loss.what)

    async def _find_repetitions(self) -> None:
        """Notes the repetitions that lie so far apart that they were taken in."""
        for pair in self._identities.twice():
            first, again = [await self._reading.record(*each) for each in pair]
            if first is None or again is None:
                continue
            head = head_of(again)
            other = head_of(first)
            if head is not None and other is not None and head.id == other.id:
                await self._again(again, head, Position(first.partition, first.offset))

    async def _plan_at(self, evidence: Evidence, step: int) -> BatchPlanned | None:
        offset = evidence.plan_place(self.facts, step)
        record = await self._reading.record(evidence.spine, offset) if offset is not None else None
        return decode_as(record, BatchPlanned) if record is not None else None


def summary(evidence: Evidence) -> VerifiedExperiment:
    """The counts of one experiment."""
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
