"""Reads a whole log and holds it against the rules: `rftd verify`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from uuid import UUID

from rftd.ops.errors import CodecError
from rftd.streams import topics
from rftd.streams.chain import GENESIS, Heads, link
from rftd.streams.codec import place
from rftd.streams.deadletters import decode_ours
from rftd.streams.envelope import Head, Record
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.experiment import Fence
from rftd.streams.events.registry import UnknownVersionError
from rftd.streams.events.task import GroupClosed
from rftd.streams.fencing import FenceView
from rftd.streams.folds.letters import Letters, Place
from rftd.streams.log import EventLog
from rftd.streams.topics import Partition
from rftd.streams.verify.evidence import Evidence
from rftd.streams.verify.heads import HeadsRemembered
from rftd.streams.verify.report import DeadLetter, Finding, Report, Summary
from rftd.streams.verify.rules import RULES


async def verify(log: EventLog, *, remembered: Heads | None = None, chained: bool = True) -> Report:
    """The findings on a log: chains, envelopes, and every rule for every experiment.

    Not `chained` is a log on Kafka, where each record carries a digest of itself alone, and offsets may leave gaps.
    Raises LogCorruptError or LogLossError where the log itself refuses to go on.
    """
    checker = _Checker(chained)
    if remembered:
        await log.check_heads(remembered)
    for partition in topics.TRUTH:
        await checker.read(log, partition)
    return checker.report()


class _Checker:
    def __init__(self, chained: bool) -> None:
        self._chained = chained
        self._findings: list[Finding] = []
        self._fences = FenceView()
        self._heads = HeadsRemembered()
        self._evidence: dict[UUID, Evidence] = {}
        self._ids: dict[UUID, tuple[Partition, int]] = {}
        self._repeated = 0
        self._dead: dict[str, str] = {}
        """Why each record that is not ours is left out, by its place."""
        self._letters = Letters()
        self._failed: set[Place] = set()
        """Where groups closed of which some rollout failed."""
        self._records = 0

    async def read(self, log: EventLog, partition: Partition) -> None:
        """One partition from its first record to its head."""
        offset, chain = 0, GENESIS
        while records := await log.read(partition, offset):
            for record in records:
                if record.offset != offset and self._chained:
                    self._note("gapless", None, f"{partition}: offset {record.offset} follows {offset - 1}")
                chain = link(chain if self._chained else GENESIS, record.head, record.value)
                if chain != record.chain:
                    self._note("chain", None, f"{place(record)} does not continue the hash chain")
                    chain = record.chain
                offset = record.offset + 1
                self._take(record)

    def _take(self, record: Record) -> None:
        self._records += 1
        self._heads.note(record)
        try:
            decoded = decode_ours(record)
        except UnknownVersionError as error:
            self._note("readable", None, f"{place(record)}: {error.what}")
            return
        except CodecError as error:
            self._dead[place(record)] = error.what
            return
        head, event = decoded.head, decoded.event
        if (known := self._ids.get(head.id)) is not None:
            self._again(record, head, known)
            return
        self._ids[head.id] = (record.partition, record.offset)
        if isinstance(event, Fence | CheckpointCommitted):
            self._heads.remember(event.heads, f"{head.type} at {place(record)}")
        self._letters.apply(event, head.time_ns)
        if isinstance(event, GroupClosed) and event.failed:
            self._failed.add(Place(*record.partition, record.offset))
        if head.experiment is None:
            return
        evidence = self._evidence.setdefault(head.experiment, Evidence(head.experiment))
        if self._fences.admit(record.partition, head, event):
            evidence.take(decoded)
        else:
            evidence.void += 1

    def _again(self, record: Record, head: Head, known: tuple[Partition, int]) -> None:
        """A repeated record has no effect. Only Kafka may repeat one, and only in its own partition."""
        if self._chained or known[0] != record.partition:
            first = f"{known[0]}@{known[1]}"
            self._note("unique", head.experiment, f"{place(record)}: event {head.id} is in the log twice, at {first}")
        else:
            self._repeated += 1

    def report(self) -> Report:
        """Everything that was found."""
        for what in self._heads.findings():
            self._note("heads-remembered", None, what)
        for what in self._wrong_verdicts():
            self._note("verdicts-name-a-letter", None, what)
        for evidence in self._evidence.values():
            if evidence.forked is not None:
                evidence.parent = self._evidence.get(evidence.forked.parent)
        for evidence in self._evidence.values():
            if evidence.spec is None:
                self._note("submitted", evidence.id, f"experiment {evidence.id} has events and was never submitted")
                continue
            for name, rule in RULES.items():
                for what in rule(evidence):
                    self._note(name, evidence.id, what)
        summaries = tuple(summary(evidence) for evidence in self._evidence.values() if evidence.spec)
        pointers = {str(place) for place in self._letters.letters}
        states = {
            str(place): "retried" if each.retried else "dropped" for place, each in self._letters.verdicts.items()
        }
        dead = tuple(
            DeadLetter(place, reason, place in pointers, states.get(place, "open"))
            for place, reason in self._dead.items()
        )
        return Report(
            records=self._records,
            findings=tuple(self._findings),
            experiments=summaries,
            dead_letters=dead,
            repeated=self._repeated,
        )

    def _wrong_verdicts(self) -> Iterator[str]:
        for letter, verdict in self._letters.verdicts.items():
            done = "retried" if verdict.retried else "dropped"
            # Of what an import left out nothing is known.
            if letter.offset >= 0 and letter not in self._letters.letters and letter not in self._failed:
                yield f"{letter} was {done}, and is neither a record that was set aside nor a task that failed"
            if verdict.event is not None and verdict.event not in self._ids:
                yield f"{letter} was retried by event {verdict.event}, which is not in the log"

    def _note(self, rule: str, experiment: UUID | None, what: str) -> None:
        self._findings.append(Finding(rule, experiment, what))


def summary(evidence: Evidence) -> Summary:
    """The counts of one experiment."""
    assert evidence.spec is not None
    members = {member.experience for closed in evidence.closed.values() for member in closed.members}
    planned = {item.experience for plan, _ in evidence.plans.values() for item in plan.experiences}
    late = [id for id, produced in evidence.produced.items() if produced.group in evidence.closed and id not in members]
    return Summary(
        experiment=evidence.id,
        name=evidence.spec.name,
        state=evidence.state,
        produced=len(members),
        planned=len(planned),
        waiting=len(members - planned - set(evidence.retired)),
        retired=dict(Counter(reasons[0] for reasons in evidence.retired.values())),
        late=len(late),
        steps=len({execution.event.step for execution in evidence.executions}),
        executions=len(evidence.executions),
        generations=len(evidence.generations),
        groups=len(evidence.closed),
        void=evidence.void,
    )
