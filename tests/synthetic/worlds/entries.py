"""Experiences as a policy sees them, and views of counts: made of a few numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from rftd.streams.events.batch import GroupRef
from rftd.streams.events.task import Member
from rftd.streams.folds.replay_buffer import BufferEntry
from rftd.streams.spec.spec import PolicySpec
from rftd.workers.control.policies.buffer_index import BufferIndex
from rftd.workers.control.policies.policy import PolicyView, StalenessPolicy
from rftd.workers.control.policies.priorities import make_priority

GROUP, BATCH = 2, 4


def entry(
    number: int,
    *,
    version: int = 0,
    priority: float = 0.0,
    group: int | None = None,
    uses: int = 0,
    eligible_at_ns: int = 0,
    newest: int | None = None,
    sequence: int | None = None,
) -> BufferEntry:
    """Experience `number`, of groups of two unless its group is given; groups closed in the order of their numbers."""
    of = number // GROUP if group is None else group
    newest = version if newest is None else newest
    member = Member(UUID(int=number), number, 0, number, 1.0, priority, 10, version, newest)
    ref = GroupRef(UUID(int=1_000_000 + of), 0, of)
    place = of if sequence is None else sequence
    return BufferEntry(member, ref, number % GROUP, 0, GROUP, place, priority, uses, eligible_at_ns)


def numbers(entries: Iterable[BufferEntry]) -> list[int]:
    """The numbers of the entries."""
    return [each.member.experience.int for each in entries]


def view(**changes: Any) -> PolicyView:
    """Groups of two, batches of four, a hundred steps, nothing done; what is planned follows from its steps."""
    planned = changes.get("planned_steps", 0)
    version = changes.get("version", 0)
    fields = {
        "version": version,
        "first_version": 0,
        "published_version": version,
        "total_steps": 100,
        "planned_steps": planned,
        "batch_size": BATCH,
        "repeat_times": GROUP,
        "planned_experiences": BATCH * planned,
        "waiting_experiences": 0,
        "inflight_rollouts": 0,
    }
    return PolicyView(**fields | changes)


def pool_of(policy: StalenessPolicy, entries: Iterable[BufferEntry], spec: PolicySpec | None = None) -> BufferIndex:
    """The pool of what may be trained, as the planner keeps it."""
    spec = spec or PolicySpec()
    return BufferIndex(policy.order, make_priority(spec.priority), entries)
