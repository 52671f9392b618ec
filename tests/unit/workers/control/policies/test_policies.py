"""Each policy against the rule of its source: batches of 4 experiences, groups of 2, versions counted from 0."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from synthetic.worlds.entries import BATCH, GROUP, entry, numbers, pool_of, view

from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import PolicySpec
from rftd.workers.control.policies.policy import Flight, StalenessPolicy
from rftd.workers.control.policies.registry import POLICIES, make_policy

NONE: frozenset[Any] = frozenset()
FREE = 1000


def made(kind: str, bound: int = 0, **changes: Any) -> StalenessPolicy:
    fields = {"bounded": kind in ("hard_bound", "in_order", "windowed", "weight_fifo"), "max_inflight_batches": FREE}
    return make_policy(PolicySpec(kind=kind, max_staleness_versions=bound, **fields | changes))


def evicted(policy: StalenessPolicy, entries: list[Any], **counts: Any) -> dict[str, list[int]]:
    parts = policy.evict(view(**counts), pool_of(policy, entries))
    return {part.reason: sorted(numbers(part.entries)) for part in parts}


@pytest.mark.parametrize(
    ("kind", "bound", "spec", "counts", "experiences"),
    [
        # AReaL: min(max_concurrent - running, (bound + v + 1) * B - (accepted + running)), in experiences.
        ("areal", 0, {}, {}, 4),
        ("areal", 2, {}, {}, 12),
        ("areal", 2, {}, {"version": 3, "planned_steps": 3}, 12),
        ("areal", 2, {}, {"version": 3, "planned_steps": 4, "waiting_experiences": 2, "inflight_rollouts": 4}, 2),
        ("areal", 2, {}, {"inflight_rollouts": 20}, 0),
        ("areal", 2, {"args": {"max_concurrent": 6}}, {}, 6),
        ("areal", 2, {"args": {"max_concurrent": 6}}, {"inflight_rollouts": 4}, 2),
        ("areal", 2, {"args": {"max_concurrent": 6}}, {"inflight_rollouts": 6}, 0),
        ("areal", 0, {"args": {"max_concurrent": 6}}, {"inflight_rollouts": 2}, 2),
        # After a recovery accepted is what was trained, planned and waits: no burst of (bound + v + 1) * B.
        ("areal", 2, {}, {"version": 7, "planned_steps": 7, "waiting_experiences": 8}, 4),
        # verl: (1 + threshold) * sync steps * B since the last synchronisation, with what was under way then.
        ("verl_window", 0, {"args": {"staleness_threshold": 0.0}}, {}, 4),
        ("verl_window", 0, {"args": {"staleness_threshold": 1.0}}, {}, 8),
        ("verl_window", 0, {"args": {"staleness_threshold": 0.5, "trigger_parameter_sync_step": 4}}, {}, 24),
        ("verl_window", 0, {"args": {"staleness_threshold": 0.5}}, {"inflight_rollouts": 4}, 2),
        (
            "verl_window",
            0,
            {"args": {"staleness_threshold": 0.5, "trigger_parameter_sync_step": 2}},
            {"version": 3, "planned_steps": 3, "published_version": 2, "inflight_rollouts": 4},
            4,  # 12 of this window, less one batch planned since and 4 under way
        ),
        # NeMo-RL windowed: no gate but the buffer's, two batches for each version of the window.
        ("windowed", 0, {}, {}, 8),
        ("windowed", 3, {}, {}, 32),
        ("windowed", 3, {}, {"version": 5, "planned_steps": 5, "waiting_experiences": 10, "inflight_rollouts": 2}, 20),
        # NeMo-RL ready_first: dispatch index < v + max(1, bound).
        ("ready_first", 0, {}, {}, 4),
        ("ready_first", 1, {}, {}, 4),
        ("ready_first", 3, {}, {}, 12),
        ("ready_first", 3, {}, {"version": 2, "planned_steps": 3, "inflight_rollouts": 4}, 4),
        # PipelineRL: ceil(max_lag / attempts) groups, and one update's groups for each that was announced, and one.
        ("sample_lag", 0, {}, {}, 8),
        ("sample_lag", 0, {"args": {"max_lag_samples": 5}}, {}, 10),
        ("sample_lag", 0, {"args": {"max_lag_samples": 5}}, {"version": 2, "planned_steps": 2}, 10),
        (
            "sample_lag",
            0,
            {"args": {"max_lag_samples": 5}},
            {"version": 2, "planned_steps": 3, "published_version": 1},
            2,
        ),
        # hard_bound, and those that admit like it: (bound + v + 1) * B and (inflight + planned) * B.
        *((kind, 2, {}, {}, 12) for kind in ("hard_bound", "in_order", "weight_fifo")),
        *((kind, 9, {"max_inflight_batches": 1}, {}, 4) for kind in ("hard_bound", "in_order", "weight_fifo")),
        # Every kind: never more than the stage still needs, nor than there is room for.
        *((kind, 9, {}, {"total_steps": 1}, 4) for kind in POLICIES.names()),
        *((kind, 9, {"capacity": 4}, {}, 4) for kind in POLICIES.names()),
        *((kind, 9, {"capacity": 4}, {"waiting_experiences": 2}, 2) for kind in POLICIES.names()),
        *((kind, 9, {"capacity": 4}, {"waiting_experiences": 0, "cooling_experiences": 4}, 0) for kind in ("areal",)),
    ],
)
def test_admission(kind: str, bound: int, spec: dict[str, Any], counts: dict[str, Any], experiences: int) -> None:
    assert made(kind, bound, **spec).admit(view(**counts)) * GROUP == experiences


def test_a_buffer_that_drops_when_full_lets_in_what_the_policy_allows() -> None:
    full = {"waiting_experiences": 4}
    assert made("areal", 2, capacity=4).admit(view(**full)) == 0
    assert made("areal", 2, capacity=4, evict_when_full=True).admit(view(**full)) == 4


@pytest.mark.parametrize("kind", POLICIES.names())
def test_nothing_begins_that_would_be_too_old_for_any_batch(kind: str) -> None:
    """Three steps are planned, so the next batch takes version 1 and up: what began on version 0 would be given up as
    stale and begun again, for as long as the steps last."""
    sweeps = kind in ("hard_bound", "in_order", "weight_fifo", "windowed")
    planned = {"planned_steps": 3, "version": 2}
    policy = made(kind, 2, args={"max_lag_samples": 99} if kind == "sample_lag" else {})
    for starting, may in ((0, not sweeps), (1, True), (None, True)):
        assert (policy.admit(view(starting_version=starting, **planned)) > 0) is may
    assert made(kind, 1, bounded=False).admit(view(starting_version=0, version=2, planned_steps=2)) > 0


@pytest.mark.parametrize("kind", ["hard_bound", "weight_fifo"])
def test_who_waits_says_for_which_weights(kind: str) -> None:
    """The oldest of step 6 is version 3 with a bound of 2: a rollout that began with it would be too old for step 7."""
    at_step_6 = view(version=4, planned_steps=5)
    assert made(kind, 2, args={"wait": True}).waits_for(at_step_6) == 3
    assert made(kind, 2).waits_for(at_step_6) is None
    assert made(kind, 2, bounded=False, args={"wait": True}).waits_for(at_step_6) is None


@pytest.mark.parametrize("kind", ["hard_bound", "weight_fifo"])
def test_as_much_begins_with_a_version_as_its_batches_can_hold(kind: str) -> None:
    """Step 2 is done, its weights are on their way: what begins now has version 1 and fits batches up to the fourth."""
    arriving = view(version=2, planned_steps=2, planned_experiences=8, starting_version=1)
    assert made(kind, 2).admit(arriving) == (4 * 4 - 8) // 2
    arrived = msgspec.structs.replace(arriving, starting_version=2)
    assert made(kind, 2).admit(arrived) == (5 * 4 - 8) // 2


# Groups (0, 1), (2, 3), (4, 5), (6, 7); they closed in this order, and began with these weights.
WAITING = [
    entry(number, version=version, sequence=9 - number // 2, priority=1.0 if number == 5 else 0.0)
    for number, version in enumerate([3, 4, 2, 2, 4, 4, 1, 3])
]


@pytest.mark.parametrize(
    ("kind", "bound", "args", "chosen"),
    [
        # Step 5 (four are planned): the oldest allowed is 4 - bound.
        ("hard_bound", 2, {}, [4, 5, 0, 1]),
        ("hard_bound", 1, {}, [4, 5, 0, 1]),
        ("hard_bound", 0, {}, [4, 5, 1]),
        ("in_order", 3, {}, [6, 7, 4, 5]),
        ("in_order", 2, {}, [7, 4, 5, 2]),
        ("weight_fifo", 3, {}, [6, 7, 2, 3]),
        ("weight_fifo", 2, {}, [7, 2, 3, 0]),
        ("windowed", 2, {}, [4, 5, 0, 1]),
        ("windowed", 2, {"freshest_first": True}, [4, 5, 0, 1]),
        ("windowed", 9, {"freshest_first": True}, [4, 5, 0, 1]),
        # No sweep: whatever is ready, as it closed, but for its priority.
        ("areal", 0, {}, [4, 5, 0, 1]),
        ("ready_first", 0, {}, [4, 5, 0, 1]),
        ("verl_window", 0, {}, [4, 5, 0, 1]),
        ("sample_lag", 0, {}, [4, 5, 0, 1]),
    ],
)
def test_selection(kind: str, bound: int, args: dict[str, Any], chosen: list[int]) -> None:
    policy = made(kind, bound, args=args)
    buffer = pool_of(policy, WAITING)
    at_step_5 = view(version=4, planned_steps=4, waiting_experiences=len(WAITING))
    assert numbers(policy.select(at_step_5, buffer, BATCH, NONE)) == chosen
    without = frozenset(WAITING[number].member.experience for number in chosen[:2])
    left = numbers(policy.select(at_step_5, buffer, BATCH, without))
    assert left[: len(chosen) - 2] == chosen[2:]
    assert not set(left) & set(chosen[:2])


def test_freshest_first_goes_by_the_oldest_version_of_a_group() -> None:
    policy = made("windowed", 9, args={"freshest_first": True})
    entries = [entry(0, version=4), entry(1, version=0), entry(2, version=2), entry(3, version=2), entry(4, version=3)]
    assert numbers(policy.select(view(), pool_of(policy, entries), 9, NONE)) == [4, 2, 3, 0, 1]


@pytest.mark.parametrize(
    ("kind", "bound", "stale"),
    [
        *((kind, 2, [6]) for kind in ("hard_bound", "in_order", "weight_fifo", "windowed")),
        *((kind, 1, [2, 3, 6]) for kind in ("hard_bound", "in_order", "weight_fifo", "windowed")),
        *((kind, 0, []) for kind in ("areal", "ready_first", "verl_window", "sample_lag")),
    ],
)
def test_the_sweep(kind: str, bound: int, stale: list[int]) -> None:
    counts = {"version": 4, "planned_steps": 4}
    assert evicted(made(kind, bound), WAITING, **counts) == ({"stale": stale} if stale else {})
    resting = [entry(n, version=1, uses=1, eligible_at_ns=99) for n in (0, 1)]
    assert evicted(made(kind, bound), resting, **counts) == ({"stale": [0, 1]} if stale else {})


@pytest.mark.parametrize(
    ("kind", "dropped"),
    [
        *((kind, [0, 1, 2]) for kind in ("hard_bound", "areal", "windowed", "ready_first", "sample_lag")),
        ("verl_window", [0, 1, 2]),
        *((kind, [5, 6, 7]) for kind in ("in_order", "weight_fifo")),
    ],
)
def test_a_full_buffer_drops_the_end_of_its_order(kind: str, dropped: list[int]) -> None:
    newest_first = [entry(number, group=number, version=number, priority=float(number)) for number in range(8)]
    policy = made(kind, 0, capacity=5, evict_when_full=True, bounded=False)
    assert evicted(policy, newest_first) == {"capacity": dropped}
    assert evicted(policy, newest_first[:5]) == {}


def test_verls_queue_drops_the_oldest_whatever_is_first_in_order() -> None:
    """Its deque does so with or without priorities."""
    policy = made("verl_window", 0, capacity=2, evict_when_full=True)
    for sign in (-1.0, 0.0, 1.0):
        entries = [entry(number, group=number, priority=sign * number) for number in (3, 0, 2, 1)]
        assert evicted(policy, entries) == {"capacity": [0, 1]}


@pytest.mark.parametrize(
    ("kind", "args", "given_up"),
    [
        ("hard_bound", {}, []),
        ("hard_bound", {"abort_inflight": True}, [0, 1]),
        ("in_order", {"abort_inflight": True}, [0, 1]),
        ("weight_fifo", {"abort_inflight": True}, [0, 1]),
        ("windowed", {}, [0, 1]),
        ("windowed", {"abort_inflight": False}, []),
        ("areal", {}, []),
        ("ready_first", {}, []),
        ("verl_window", {}, []),
        ("sample_lag", {}, []),
    ],
)
def test_flights_that_began_before_the_bound(kind: str, args: dict[str, Any], given_up: list[int]) -> None:
    flights = [Flight(entry(0, group=version).group.group, version) for version in range(5)]
    at_step_5 = view(version=4, planned_steps=4)
    assert made(kind, 2, args=args).abort_inflight(at_step_5, flights) == [flights[number] for number in given_up]


@pytest.mark.parametrize("kind", ["hard_bound", "windowed"])
def test_nothing_is_given_up_where_no_bound_is_kept(kind: str) -> None:
    policy = made(kind, 0, bounded=False, args={"abort_inflight": True})
    old = Flight(entry(0).group.group, 0)
    assert policy.abort_inflight(view(version=4, planned_steps=4), [old]) == []


@pytest.mark.parametrize("kind", POLICIES.names())
def test_arguments_of_another_kind_are_refused(kind: str) -> None:
    if kind == "ready_first":
        return  # it has none, and reads none
    with pytest.raises(ConfigError, match=f"policy {kind}"):
        made(kind, args={"max_concurent": 3})
