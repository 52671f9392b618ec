"""Findings of a check, and what was looked at."""

from __future__ import annotations

from uuid import UUID

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """A broken promise."""

    rule: str
    """Its name in docs/concepts.md, for example `trained-once`."""
    experiment: UUID | None
    what: str
    """What is wrong, with the ids and positions."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
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


class DeadLetter(msgspec.Struct, frozen=True):
    """A record that is not ours: every reader leaves it out."""

    place: str
    """`stream/partition@offset`."""
    reason: str
    pointed_at: bool
    """True if a record.dead_lettered names it; the daemon writes that when it meets the record."""
    state: str = "open"
    """`open`, or what somebody decided: `retried`, `dropped`."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a check."""

    records: int
    findings: tuple[Finding, ...]
    experiments: tuple[Summary, ...]
    dead_letters: tuple[DeadLetter, ...] = ()
    """Without effect, so no broken promise."""
    repeated: int = 0
    """Records that came again in their partition, on Kafka: it may repeat what was retried long ago. Without effect."""

    @property
    def clean(self) -> bool:
        """True if nothing is wrong."""
        return not self.findings
