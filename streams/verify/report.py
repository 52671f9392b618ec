"""`VerifyReport`: the findings of a check, and the counts of the records read."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.events.experiment import LossAccepted
from rftd.streams.log.envelope import Head
from rftd.streams.log.lost_records import Loss


class BrokenPromise(msgspec.Struct, frozen=True):
    """A finding: one promise broken by the log."""

    rule: str
    """The rule's name in docs/concepts.md, for example `trained-once`."""
    experiment: UUID | None
    what: str
    """The fault in words, with ids and positions."""


class VerifiedExperiment(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one experiment's records, as shown in the report of a check."""

    experiment: UUID
    name: str
    state: str
    produced: int
    """Members of closed groups: each is planned, or retired without a use, or waits."""
    planned: int
    """Members planned at least once."""
    retired_after_use: int
    """Members planned and retired before their last use (`reuse`)."""
    waiting: int
    retired: dict[str, int]
    """Retired members, planned before or not, by reason."""
    late: int
    """Experiences of rollouts whose group had closed without them, having no effect."""
    steps: int
    executions: int
    """Steps over all generations."""
    generations: int
    groups: int
    void: int
    """Records made void by a fence."""
    not_looked_at: dict[str, int] = {}
    """Checkpoints and weights with no bytes in any file, by kind and location; known after a check of files."""

    @property
    def retired_unused(self) -> int:
        """Experiences retired and never planned: `produced` = `planned` + these + `waiting`."""
        return sum(self.retired.values()) - self.retired_after_use


class LeftOutRecord(msgspec.Struct, frozen=True):
    """A foreign record, skipped by every reader."""

    place: str
    """`stream/partition@offset`."""
    reason: str
    pointed_at: bool
    """True if a record.dead_lettered names the record; the daemon writes one on reading it."""
    state: str = "open"
    """`open`, or the decision about it: `retried`, `dropped`."""


class AcceptedLoss(msgspec.Struct, frozen=True):
    """Lost records accepted by a person, letting an experiment continue: reported for ever, and no finding."""

    experiment: UUID
    what: str
    """The last remembered position, and its witness."""
    by: str
    time_ns: int


def accepted_losses(event: LossAccepted, head: Head) -> list[AcceptedLoss]:
    """Returns the losses accepted by an event, one for each partition: its newest remembered head."""
    assert head.experiment is not None
    newest = {(lost.stream, lost.partition): lost for lost in sorted(event.lost, key=lambda lost: lost.next_offset)}
    return [
        AcceptedLoss(head.experiment, Loss(lost).what, event.by, head.time_ns) for _, lost in sorted(newest.items())
    ]


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a check: number of records, findings, summaries and dead letters."""

    records: int
    findings: tuple[BrokenPromise, ...]
    experiments: tuple[VerifiedExperiment, ...]
    dead_letters: tuple[LeftOutRecord, ...] = ()
    """Foreign records; they have no effect, and break no promise."""
    accepted_losses: tuple[AcceptedLoss, ...] = ()
    repeated: int = 0
    """Records repeated in their partition, without effect: Kafka may repeat a record retried long ago."""
    left_out: dict[str, int] = {}
    """Number of findings not shown, by rule: each rule shows its first ones."""

    @property
    def clean(self) -> bool:
        """True if there is no finding."""
        return not self.findings
