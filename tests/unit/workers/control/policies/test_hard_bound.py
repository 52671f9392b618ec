"""Admission, selection and eviction of the hard bound."""

from __future__ import annotations

from uuid import UUID

import pytest

from rftd.ops.errors import ConfigError
from rftd.streams.events.batch import GroupRef
from rftd.streams.events.task import Member
from rftd.streams.folds.replay_buffer import BufferEntry
from rftd.streams.spec.spec import PolicySpec
from rftd.workers.control.policies.bounded import HardBound
from rftd.workers.control.policies.buffer_index import BufferIndex
from rftd.workers.control.policies.policy import PolicyView
from rftd.workers.control.policies.priorities import tag
from rftd.workers.control.policies.registry import make_policy


def entry(number: int, *, version: int = 0, priority: float = 0.0) -> BufferEntry:
    """Experience `number`; groups of two."""
    member = Member(UUID(int=number), number % 2, 0, number, 1.0, priority, 10, version, version)
    group = GroupRef(UUID(int=1000 + number // 2), 0, number // 2)
    return BufferEntry(member, group, number % 2, 0, 2, number // 2, priority)


def view(
    waiting: int = 0, *, version: int = 0, planned: int = 0, first: int = 0, inflight: int = 0, total: int = 100
) -> PolicyView:
    return PolicyView(
        version=version,
        first_version=first,
        published_version=version,
        total_steps=total,
        planned_steps=planned,
        batch_size=4,
        repeat_times=2,
        planned_experiences=4 * planned,
        waiting_experiences=waiting,
        inflight_rollouts=inflight,
    )


def pool_of(policy: HardBound, entries: list[BufferEntry]) -> BufferIndex:
    return BufferIndex(policy.order, tag(), entries)


def stale(policy: HardBound, seen: PolicyView, entries: list[BufferEntry]) -> list[int]:
    """What the policy retires."""
    parts = list(policy.evict(seen, pool_of(policy, entries)))
    assert {part.reason for part in parts} <= {"stale"}
    return [entry.member.experience.int for part in parts for entry in part.entries]


def bound(versions: int, inflight: int = 100) -> HardBound:
    return HardBound(PolicySpec(max_staleness_versions=versions, max_inflight_batches=inflight))


@pytest.mark.parametrize(
    ("versions", "inflight", "version", "planned", "groups"),
    [
        (0, 100, 0, 0, 2),  # on-policy: one batch, two groups of two
        (0, 100, 0, 1, 0),
        (0, 100, 1, 1, 2),
        (2, 100, 0, 0, 6),
        (2, 1, 0, 0, 2),
        (2, 1, 0, 1, 2),
        (2, 100, 5, 5, 6),
    ],
)
def test_admission_is_bounded_by_staleness_and_by_what_is_under_way(
    versions: int, inflight: int, version: int, planned: int, groups: int
) -> None:
    assert bound(versions, inflight).admit(view(version=version, planned=planned)) == groups


def test_what_is_under_way_or_waits_counts_and_the_stage_ends() -> None:
    policy = bound(2)
    assert policy.admit(view(4, inflight=4)) == 2
    assert policy.admit(view(total=1)) == 2
    assert policy.admit(view(inflight=50)) == 0


def test_a_batch_takes_the_oldest_groups_first_and_priorities_before_them() -> None:
    entries = [entry(n, priority=1.0 if n == 5 else 0.0) for n in (3, 0, 5, 1, 2)]
    policy = bound(2)
    chosen = policy.select(view(), pool_of(policy, entries), 4, frozenset())
    assert [each.member.experience.int for each in chosen] == [5, 0, 1, 2]


def test_what_is_over_the_bound_is_neither_chosen_nor_kept() -> None:
    entries = [entry(0, version=1), entry(1, version=2), entry(2, version=4)]
    at_step_5 = view(3, version=4, planned=4)
    policy = bound(2)
    chosen = policy.select(at_step_5, pool_of(policy, entries), 4, frozenset())
    assert [each.member.oldest_version for each in chosen] == [2, 4]
    assert stale(policy, at_step_5, entries) == [0]
    assert stale(policy, view(3, version=2, planned=2), entries) == []
    assert stale(policy, view(version=9, planned=9), []) == []


def test_versions_count_over_the_experiment_and_steps_within_the_stage() -> None:
    entries = [entry(0, version=10), entry(1, version=11)]
    assert stale(bound(0), view(2, version=11, first=10, planned=1), entries) == [0]


def test_the_view_after_a_plan() -> None:
    before = view(6)
    after = before.after([entry(n) for n in range(4)])
    assert (after.planned_steps, after.planned_experiences, after.waiting_experiences) == (1, 4, 2)
    assert after.supply == before.supply


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="hard_bond"):
        make_policy(PolicySpec(kind="hard_bond"))
