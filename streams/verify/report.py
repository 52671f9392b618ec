"""`VerifyReport`: the findings of a check, and the counts of what was read."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.events.experiment import LossAccepted
from rftd.streams.log.envelope import Head
from rftd.streams.log.losses import Loss


class BrokenPromise(msgspec.Struct, frozen=True):
    """A finding: one promise that the log does not keep."""

    rule: str
    """The rule's name in docs/concepts.md, for example `trained-once`."""
    experiment: UUID | None
    what: str
    """The fault in words, with ids and positions."""


class VerifiedExperiment(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one experiment's records."""

    experiment: UUID
    name: str
    state: str
    produced: int
    """Members of closed groups: each is planned, or retired without a use, or waits."""
    planned: int
    """Those that were planned at least once."""
    retired_after_use: int
    """Those that were planned and retired before their last use (`reuse`)."""
    waiting: int
    retired: dict[str, int]
    """Those that were retired, planned before or not, by reason."""
    late: int
    """Experiences of rollouts whose group had closed without them, and which have no effect."""
    steps: int
    executions: int
    """Steps over all generations."""
    generations: int
    groups: int
    void: int
    """Records that a fence made void."""
    not_looked_at: dict[str, int] = {}
    """The checkpoints and weights whose bytes are in no file, by what and where they are; known of a look at files."""

    @property
    def retired_unused(self) -> int:
        """The experiences that were retired and never planned: `produced` = `planned` + these + `waiting`."""
        return sum(self.retired.values()) - self.retired_after_use


class LeftOutRecord(msgspec.Struct, frozen=True):
    """A foreign record, which every reader leaves out."""

    place: str
    """`stream/partition@offset`."""
    reason: str
    pointed_at: bool
    """True if a record.dead_lettered names it; the daemon writes that when it meets the record."""
    state: str = "open"
    """`open`, or the decision about it: `retried`, `dropped`."""


class AcceptedLoss(msgspec.Struct, frozen=True):
    """Lost records without which a person let an experiment go on: told for ever, and no finding."""

    experiment: UUID
    what: str
    """The position that is remembered last, and by whom."""
    by: str
    time_ns: int


def accepted_losses(event: LossAccepted, head: Head) -> list[AcceptedLoss]:
    """The losses that an event accepts, one for each partition: its newest remembered head."""
    assert head.experiment is not None
    newest = {(lost.stream, lost.partition): lost for lost in sorted(event.lost, key=lambda lost: lost.next_offset)}
    return [
        AcceptedLoss(head.experiment, Loss(lost).what, event.by, head.time_ns) for _, lost in sorted(newest.items())
    ]


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a check."""

    records: int
    findings: tuple[BrokenPromise, ...]
    experiments: tuple[VerifiedExperiment, ...]
    dead_letters: tuple[LeftOutRecord, ...] = ()
    """Foreign records; they have no effect, so they break no promise."""
    accepted_losses: tuple[AcceptedLoss, ...] = ()
    repeated: int = 0
    """Records that came again in their partition, without effect: Kafka may repeat what was retried long ago."""
    left_out: dict[str, int] = {}
    """The number of findings that are not shown, by rule: each rule shows its first ones."""

    @property
    def clean(self) -> bool:
        """True if nothing is wrong."""
        return not self.findings
