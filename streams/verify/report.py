"""`VerifyReport`: the findings of a check, and the counts of the records read."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.events.experiment import LossAccepted
from rftd.streams.log.envelope import Head
from rftd.streams.log.lost_records import Loss


class BrokenPromise(msgspec.Struct, frozen=True):
    """A finding: a rule of docs/concepts.md that the log violates."""

    rule: str
    """The rule's name in docs/concepts.md, for example `trained-once`."""
    experiment: UUID | None
    """The experiment concerned; None for the log as a whole."""
    what: str
    """The fault in words, with ids and positions."""


class VerifiedExperiment(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one experiment's records, for the report."""

    experiment: UUID
    """Id of the experiment."""
    name: str
    """Name of the experiment."""
    state: str
    """State of the experiment, such as `running`."""
    produced: int
    """Members of closed groups: each is planned, or retired without a use, or waits."""
    planned: int
    """Members planned at least once."""
    retired_after_use: int
    """Members planned and retired before their last use (`reuse`)."""
    waiting: int
    """Number of members neither planned nor retired."""
    retired: dict[str, int]
    """Retired members, planned before or not, by reason."""
    late: int
    """Experiences produced after their group had closed without them, without effect."""
    steps: int
    """Number of steps executed."""
    executions: int
    """Number of executed steps over all generations, repeated steps included."""
    generations: int
    """Number of generations."""
    groups: int
    """Number of closed groups."""
    void: int
    """Number of records without effect: of a role not owned by the writer, or plans out of turn."""
    not_looked_at: dict[str, int] = {}
    """Checkpoints and weights that could not be checked because they are in no file, by kind and location."""

    @property
    def retired_unused(self) -> int:
        """Experiences retired and never planned: `produced` = `planned` + `retired_unused` + `waiting`."""
        return sum(self.retired.values()) - self.retired_after_use


class LeftOutRecord(msgspec.Struct, frozen=True):
    """A foreign record (for example unreadable), skipped by every reader."""

    place: str
    """`stream/partition@offset`."""
    reason: str
    """Why readers skip the record."""
    pointed_at: bool
    """True if the daemon has written a record.dead_lettered about it."""
    state: str = "open"
    """`open`, or the decision about it: `retried`, `dropped`."""


class AcceptedLoss(msgspec.Struct, frozen=True):
    """Lost records accepted by a person, so that an experiment could continue; reported, but no finding."""

    experiment: UUID
    """Id of the experiment."""
    what: str
    """The last remembered position, and who remembers it."""
    by: str
    """Name of the person who accepted the loss."""
    time_ns: int
    """Time of the acceptance."""


def accepted_losses(event: LossAccepted, head: Head) -> list[AcceptedLoss]:
    """Returns the losses accepted by an event, one for each partition: its newest remembered head."""
    assert head.experiment is not None
    newest = {(lost.stream, lost.partition): lost for lost in sorted(event.lost, key=lambda lost: lost.next_offset)}
    return [
        AcceptedLoss(head.experiment, Loss(lost).what, event.by, head.time_ns) for _, lost in sorted(newest.items())
    ]


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a check: findings, counts per experiment, and dead letters."""

    records: int
    """Number of records read."""
    findings: tuple[BrokenPromise, ...]
    """The findings shown."""
    experiments: tuple[VerifiedExperiment, ...]
    """Counts of each experiment."""
    dead_letters: tuple[LeftOutRecord, ...] = ()
    """Foreign records; they have no effect, and break no promise."""
    accepted_losses: tuple[AcceptedLoss, ...] = ()
    """The losses accepted by a person."""
    repeated: int = 0
    """Records that repeat an earlier one, without effect; only Kafka may repeat records."""
    left_out: dict[str, int] = {}
    """Number of findings beyond those listed, by rule."""

    @property
    def clean(self) -> bool:
        """True if there is no finding."""
        return not self.findings
