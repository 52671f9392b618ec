"""Relations that hold for every built-in staleness policy, whatever the counts: none of them restates a formula.

Where a stage begins must not matter, more supply must never admit more, and what is chosen must be what is there, in
the policy's own order, within its own bound.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.worlds.entries import BATCH, GROUP, entry, numbers, pool_of, view

from rftd.ops.errors import ConfigError
from rftd.streams.folds.replay_buffer import BufferEntry
from rftd.streams.spec.spec import PolicySpec
from rftd.workers.control.policies.policy import Flight, PolicyView
from rftd.workers.control.policies.registry import BUILT_IN, built_in, keeps_bound, make_policy

KINDS = sorted(BUILT_IN)
OWN: dict[str, list[dict[str, Any]]] = {
    "hard_bound": [{}, {"abort_inflight": True}, {"wait": True}],
    "weight_fifo": [{}, {"abort_inflight": True, "wait": True}],
    "windowed": [{}, {"freshest_first": True}, {"abort_inflight": False}],
    "areal": [{}, {"max_concurrent": 1}, {"max_concurrent": 9}],
    "verl_window": [{}, {"staleness_threshold": 0.0}, {"trigger_parameter_sync_step": 3}],
    "sample_lag": [{}, {"max_lag_samples": 1}, {"max_lag_samples": 20}],
}


@st.composite
def specs(draw: st.DrawFn) -> PolicySpec:
    """A policy as the experiment file can ask for it."""
    kind = draw(st.sampled_from(KINDS))
    return PolicySpec(
        kind=kind,
        max_staleness_versions=draw(st.integers(0, 3)),
        bounded=keeps_bound(kind) and draw(st.booleans()),
        max_inflight_batches=draw(st.integers(1, 4)),
        args=draw(st.sampled_from(OWN.get(kind, [{}]))),
        capacity=draw(st.sampled_from([0, BATCH, 3 * BATCH])),
        evict_when_full=draw(st.booleans()),
    )


@st.composite
def views(draw: st.DrawFn) -> PolicyView:
    """Counts that a stage may come to: never more announced than trained, never more trained than planned."""
    first = draw(st.integers(0, 5))
    planned = draw(st.integers(0, 6))
    version = first + draw(st.integers(0, planned))
    published = draw(st.integers(first, version))
    return view(
        version=version,
        first_version=first,
        published_version=published,
        starting_version=draw(st.sampled_from([None, published])),
        total_steps=draw(st.integers(max(1, planned), 12)),
        planned_steps=planned,
        waiting_experiences=draw(st.integers(0, 20)),
        inflight_rollouts=draw(st.integers(0, 20)),
        cooling_experiences=draw(st.integers(0, 5)),
    )


@st.composite
def buffers(draw: st.DrawFn) -> list[BufferEntry]:
    """Whole groups in the order in which they closed; the members of one may have begun on different versions."""
    entries: list[BufferEntry] = []
    for group in range(draw(st.integers(0, 6))):
        priority = draw(st.sampled_from([0.0, 0.0, 1.0, -1.0]))
        sequence = draw(st.integers(0, 50))
        entries += [
            entry(
                group * GROUP + member,
                version=draw(st.integers(0, 11)),
                priority=priority,
                sequence=100 * sequence + group,
            )
            for member in range(GROUP)
        ]
    return entries


def moved(each: PolicyView, by: int) -> PolicyView:
    """The same counts of a stage that began so many versions later."""
    return msgspec.structs.replace(
        each,
        version=each.version + by,
        first_version=each.first_version + by,
        published_version=each.published_version + by,
        starting_version=None if each.starting_version is None else each.starting_version + by,
    )


def later(each: BufferEntry, by: int) -> BufferEntry:
    member = msgspec.structs.replace(
        each.member, oldest_version=each.member.oldest_version + by, newest_version=each.member.newest_version + by
    )
    return msgspec.structs.replace(each, member=member)


@settings(deadline=None)
@given(specs(), views(), buffers(), st.integers(1, 1000), st.lists(st.integers(0, 11), max_size=5))
def test_where_a_stage_begins_changes_no_answer(
    spec: PolicySpec, seen: PolicyView, entries: list[BufferEntry], by: int, flown: list[int]
) -> None:
    policy = make_policy(spec)
    shifted = moved(seen, by)
    assert policy.admit(shifted) == policy.admit(seen)
    here, there = pool_of(policy, entries, spec), pool_of(policy, [later(each, by) for each in entries], spec)
    nobody = frozenset[UUID]()
    assert numbers(policy.select(shifted, there, BATCH, nobody)) == numbers(policy.select(seen, here, BATCH, nobody))
    evicted = [(part.reason, sorted(numbers(part.entries))) for part in policy.evict(seen, here)]
    assert [(part.reason, sorted(numbers(part.entries))) for part in policy.evict(shifted, there)] == evicted
    waits, waits_later = policy.waits_for(seen), policy.waits_for(shifted)
    assert waits_later == (None if waits is None else waits + by)
    flights = [Flight(UUID(int=number), version) for number, version in enumerate(flown)]
    flights_later = [Flight(flight.group, flight.oldest_version + by) for flight in flights]
    aborted = [flight.group for flight in policy.abort_inflight(seen, flights)]
    assert [flight.group for flight in policy.abort_inflight(shifted, flights_later)] == aborted


@settings(deadline=None)
@given(specs(), views(), st.integers(1, 9))
def test_more_supply_never_admits_more_and_what_is_admitted_is_room_at_once(
    spec: PolicySpec, seen: PolicyView, more: int
) -> None:
    policy = make_policy(spec)
    now = policy.admit(seen)
    assert now >= 0
    fuller = msgspec.structs.replace(seen, inflight_rollouts=seen.inflight_rollouts + more)
    assert policy.admit(fuller) <= now
    given_out = msgspec.structs.replace(seen, inflight_rollouts=seen.inflight_rollouts + now * seen.repeat_times)
    assert policy.admit(given_out) == 0, "asked again after they were given out, there is no more"
    assert given_out.supply < seen.total_steps * seen.batch_size + seen.repeat_times or now == 0


@settings(deadline=None)
@given(specs(), views())
def test_a_stage_never_begins_what_it_cannot_train(spec: PolicySpec, seen: PolicyView) -> None:
    policy = make_policy(spec)
    full = msgspec.structs.replace(
        seen, waiting_experiences=max(0, seen.total_steps * seen.batch_size - seen.planned_experiences)
    )
    assert policy.admit(full) == 0


@settings(deadline=None)
@given(specs(), views(), buffers(), st.integers(1, 9), st.data())
def test_what_is_chosen_is_there_once_in_order_and_within_the_bound(
    spec: PolicySpec, seen: PolicyView, entries: list[BufferEntry], size: int, data: st.DataObject
) -> None:
    policy = make_policy(spec)
    pool = pool_of(policy, entries, spec)
    without = frozenset(
        each.member.experience for each in entries if data.draw(st.booleans(), label=f"leave out {each.member.rollout}")
    )
    chosen = policy.select(seen, pool, size, without)
    ids = [each.member.experience for each in chosen]
    assert len(ids) == len(set(ids)) <= size
    assert not without.intersection(ids)
    assert set(ids) <= {each.member.experience for each in entries}
    in_order = [each.member.experience for each in pool.in_order(without)]
    assert ids == [id for id in in_order if id in set(ids)]
    oldest = seen.first_version + seen.planned_steps - spec.max_staleness_versions
    fits = [each for each in entries if not spec.bounded or each.member.oldest_version >= oldest]
    fits = [each for each in fits if each.member.experience not in without]
    assert len(ids) == min(size, len(fits)), "nothing that fits is passed over while there is room"
    assert {each.experience for each in (entry.member for entry in fits)} >= set(ids)


@settings(deadline=None)
@given(specs(), views(), buffers())
def test_retired_experiences_fit_no_batch_and_a_full_queue_loses_only_the_excess(
    spec: PolicySpec, seen: PolicyView, entries: list[BufferEntry]
) -> None:
    policy = make_policy(spec)
    parts = list(policy.evict(seen, pool_of(policy, entries, spec)))
    assert all(part.entries for part in parts)
    gone = {each.member.experience: part.reason for part in parts for each in part.entries}
    assert len(gone) == sum(len(part.entries) for part in parts), "each for one reason"
    oldest = seen.first_version + seen.planned_steps - spec.max_staleness_versions
    stale = {each.member.experience for each in entries if spec.bounded and each.member.oldest_version < oldest}
    assert {id for id, reason in gone.items() if reason == "stale"} == stale
    left = [each for each in entries if each.member.experience not in gone]
    chosen = policy.select(seen, pool_of(policy, entries, spec), len(entries), frozenset())
    assert not stale.intersection(each.member.experience for each in chosen)
    if "capacity" in gone.values():
        assert spec.evict_when_full
        assert len(left) == spec.capacity
    elif spec.evict_when_full and spec.capacity and not stale:
        assert len(left) <= spec.capacity
    again = list(policy.evict(seen, pool_of(policy, left, spec)))
    assert not [part for part in again if part.reason == "stale"]


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_of_another_kind_and_values_out_of_bounds_are_refused_by_name(kind: str) -> None:
    policy = built_in(kind)
    assert policy is not None
    known = set(policy.arguments.__struct_fields__)
    wrong: list[dict[str, Any]] = [{"no_such_argument": 1}]
    wrong += [
        {name: value} for args in OWN.values() for each in args for name, value in each.items() if name not in known
    ]
    wrong += [{name: value} for name in known for value in ("much", None, [1])]
    wrong += [{name: -1} for name in known & {"max_concurrent", "max_lag_samples", "staleness_threshold"}]
    wrong += [{name: 10**10} for name in known & {"max_concurrent", "max_lag_samples", "staleness_threshold"}]
    wrong += [{"staleness_threshold": float("nan")}] if "staleness_threshold" in known else []
    for args in wrong:
        if policy.arguments.__struct_fields__ == () and kind not in OWN:
            continue  # it reads none
        with pytest.raises(ConfigError, match=f"policy {kind}"):
            make_policy(PolicySpec(kind=kind, args=args))
