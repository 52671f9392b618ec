"""Findings of a check, and what was looked at."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.envelope import Head
from rftd.streams.events.experiment import LossAccepted
from rftd.streams.losses import Loss


class BrokenPromise(msgspec.Struct, frozen=True):
    """A broken promise."""

    rule: str
    """Its name in docs/concepts.md, for example `trained-once`."""
    experiment: UUID | None
    what: str
    """What is wrong, with the ids and positions."""


class VerifiedExperiment(msgspec.Struct, frozen=True, kw_only=True):
    """What one experiment's log holds."""

    experiment: UUID
    name: str
    state: str
    produced: int
    planned: int
    waiting: int
    retired: dict[str, int]
    late: int
    """Experiences of rollouts whose group had closed without them; no effect."""
    steps: int
    executions: int
    """Steps over all generations."""
    generations: int
    groups: int
    void: int
    """Records that a fence made void."""


class LeftOutRecord(msgspec.Struct, frozen=True):
    """A record that is not ours: every reader leaves it out."""

    place: str
    """`stream/partition@offset`."""
    reason: str
    pointed_at: bool
    """True if a record.dead_lettered names it; the daemon writes that when it meets the record."""
    state: str = "open"
    """`open`, or what somebody decided: `retried`, `dropped`."""


class AcceptedLoss(msgspec.Struct, frozen=True):
    """Records that the log lost and that somebody lets an experiment go on without: told for ever, and no finding."""

    experiment: UUID
    what: str
    """The position that is remembered last, and by whom."""
    by: str
    time_ns: int


def accepted_losses(event: LossAccepted, head: Head) -> list[AcceptedLoss]:
    """What an event accepts: of each partition the newest head that is remembered."""
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
    """Without effect, so no broken promise."""
    accepted_losses: tuple[AcceptedLoss, ...] = ()
    repeated: int = 0
    """Records that came again in their partition, on Kafka: it may repeat what was retried long ago. Without effect."""
    left_out: dict[str, int] = {}
    """How many findings of each rule are not shown: a rule shows its first ones."""

    @property
    def clean(self) -> bool:
        """True if nothing is wrong."""
        return not self.findings
