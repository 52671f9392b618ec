"""Priority functions, and how a replay buffer is read: through its index and the planner, on a clock."""

from __future__ import annotations

import statistics
from typing import Any
from unittest import mock

import pytest
from synthetic.worlds.desk import REPEAT, Desk, stage_of
from synthetic.worlds.entries import entry

from rftd.ops import limits
from rftd.ops.errors import ConfigError
from rftd.streams.events.batch import BatchPlanned, ExperiencePrioritized, ExperienceRetired
from rftd.streams.spec.spec import PolicySpec, PrioritySpec
from rftd.workers.control.planner import Planner
from rftd.workers.control.policies.priorities import PRIORITIES, make_priority
from rftd.workers.control.policies.registry import make_policy

COOLDOWN_S = 0.1


class Buffer:
    """A replay buffer of groups: capacity and reads count groups, as the guide's count items."""

    def __init__(self, *, capacity: int, read: int, max_uses: int, cooldown_s: float = COOLDOWN_S, **args: Any) -> None:
        kind = "decay_limit_randomization" if "use_count_limit" in args else "linear_decay"
        policy = PolicySpec(
            kind="areal",
            bounded=False,
            max_staleness_versions=0,
            priority=PrioritySpec(kind=kind, args=args),
            max_uses=max_uses,
            cooldown_s=cooldown_s,
            capacity=capacity * REPEAT,
            evict_when_full=True,
        )
        self.desk = Desk(stage_of(policy=policy, train_batch_size=read * REPEAT, batch_size=read, total_steps=100))
        self.planner = Planner(self.desk.state)
        self.now_ns = self.desk.recorder.clock.now_ns()
        self.retired: list[tuple[int, str]] = []

    def put(self, version: int) -> None:
        self.desk.supply(1, version=version)

    def read(self, *, ahead_s: float = 1.0) -> list[tuple[int, int]]:
        """(weight version, use) of each group of the next batch, so much later; what is evicted on the way is kept."""
        self.now_ns += round(ahead_s * 1e9)
        while True:
            with mock.patch.object(limits, "PLAN_AHEAD_BATCHES", 1):  # as a reader who asks when it needs one
                made = self.desk.obey(self.planner.decide(self.desk.positions, self.now_ns).events)
            gone = [event for event in made if isinstance(event, ExperienceRetired)]
            self.retired += [(len(event.experiences) // REPEAT, event.reason) for event in gone]
            plans = [event for event in made if isinstance(event, BatchPlanned)]
            for plan in plans:
                self.desk.execute()
                return [self._seen(plan, at) for at in range(0, len(plan.experiences), REPEAT)]
            if not made:
                return []

    @property
    def size(self) -> int:
        """Groups in it, those that rest too."""
        replay_buffer = self.desk.state.replay_buffer
        return (len(replay_buffer.waiting) + len(replay_buffer.cooling)) // REPEAT

    def _seen(self, plan: BatchPlanned, at: int) -> tuple[int, int]:
        items = plan.experiences[at : at + REPEAT]
        assert {item.group for item in items} == {items[0].group}
        assert [item.member for item in items] == list(range(REPEAT))
        return plan.step - 1 - items[0].staleness_versions, items[0].use


def test_the_highest_versions_are_kept_and_read_first() -> None:
    buffer = Buffer(capacity=8, read=1, max_uses=1)
    for version in range(12):
        buffer.put(version)
    assert [buffer.read() for _ in range(8)] == [[(version, 1)] for version in range(11, 3, -1)]
    assert buffer.read() == []
    assert buffer.retired == [(4, "capacity")]
    assert buffer.desk.state.replay_buffer.counts()["balance"] == 0


def test_reuse_decays_until_older_versions_have_their_turn() -> None:
    """Trinity-RFT's own sequence for decay 0.6 and capacity 4, read in twos once each has rested."""
    buffer = Buffer(capacity=4, read=2, max_uses=0, decay=0.6)
    for version in range(5):
        buffer.put(version)
    versions = [tuple(version for version, _ in buffer.read()) for _ in range(6)]
    assert versions == [(4, 3), (4, 3), (4, 2), (4, 3), (4, 2), (3, 1)]
    assert buffer.retired == [(1, "capacity")]
    assert buffer.size == 4


def test_a_limit_of_uses_empties_the_buffer() -> None:
    """Trinity-RFT's lengths for decay 1.2 and limit 2."""
    buffer = Buffer(capacity=4, read=2, max_uses=2, decay=1.2, use_count_limit=2)
    for version in range(1, 5):
        buffer.put(version)
    read, sizes = [], []
    for _ in range(3):
        read.append(buffer.read())
        sizes.append(buffer.size)
    assert sizes == [4, 3, 2]
    assert read == [[(4, 1), (3, 1)], [(4, 2), (2, 1)], [(3, 2), (1, 1)]]
    assert [buffer.read(), buffer.size] == [[(2, 2), (1, 2)], 0]
    assert buffer.desk.state.replay_buffer.counts() | {"produced": 0} == {
        "produced": 0,
        "waiting": 0,
        "cooling": 0,
        "planned": 4 * REPEAT,
        "retired": 0,
        "balance": 0,
    }


def test_nothing_is_read_before_it_has_rested() -> None:
    buffer = Buffer(capacity=8, read=1, max_uses=0, cooldown_s=10.0, decay=0.0)
    buffer.put(2)
    buffer.put(1)
    assert [buffer.read(ahead_s=1.0) for _ in range(4)] == [[(2, 1)], [(1, 1)], [], []]
    assert buffer.read(ahead_s=6.999_999_999) == []
    assert buffer.read(ahead_s=0.000_000_001) == [(2, 2)]
    assert buffer.read(ahead_s=0.5) == []
    assert buffer.read(ahead_s=0.5) == [(1, 2)]


def test_a_newcomer_of_lower_priority_is_the_one_that_goes() -> None:
    buffer = Buffer(capacity=2, read=1, max_uses=1)
    for version in (5, 6, 1):
        buffer.put(version)
    assert [buffer.read() for _ in range(3)] == [[(6, 1)], [(5, 1)], []]


def test_what_rests_takes_no_place_from_what_is_new() -> None:
    """Else the same ones would be read for ever, and all newer ones dropped."""
    buffer = Buffer(capacity=2, read=2, max_uses=0, cooldown_s=10.0)
    for version in (0, 1):
        buffer.put(version)
    assert buffer.read() == [(1, 1), (0, 1)]
    for version in (2, 3):
        buffer.put(version)
    assert buffer.read() == [(3, 1), (2, 1)]
    assert buffer.retired == []
    buffer.put(4)
    assert buffer.read(ahead_s=20.0) == [(4, 1), (3, 2)]
    assert buffer.retired == [(3, "capacity")]


def test_a_tag_comes_before_versions_and_may_be_changed() -> None:
    buffer = Buffer(capacity=8, read=1, max_uses=1)
    buffer.put(1)
    first = next(iter(buffer.desk.state.replay_buffer.waiting.values())).group.group
    for version in (2, 3, 4):
        buffer.put(version)
    assert buffer.read() == [(4, 1)]
    buffer.desk.put(ExperiencePrioritized(group=first, priority=50.0))
    assert [buffer.read() for _ in range(3)] == [[(1, 1)], [(3, 1)], [(2, 1)]]


@pytest.mark.parametrize(
    ("kind", "args", "uses", "expected"),
    [
        ("tag", {}, 4, 7.0),
        ("linear_decay", {}, 0, 7.0 + 9),
        ("linear_decay", {}, 2, 7.0 + 9 - 4),
        ("linear_decay", {"decay": 0.5}, 3, 7.0 + 9 - 1.5),
        ("decay_limit_randomization", {}, 1, 7.0 + 9 - 2),
        ("decay_limit_randomization", {"decay": 1.0, "use_count_limit": 9}, 5, 7.0 + 9 - 5),
    ],
)
def test_what_they_compute(kind: str, args: dict[str, Any], uses: int, expected: float) -> None:
    """The experience's rollout ended on version 9; where it began does not matter."""
    made = make_priority(PrioritySpec(kind=kind, args=args))
    assert made(entry(3, version=4, newest=9, priority=7.0, uses=uses)) == expected


def test_deviates_are_normal_repeatable_and_drawn_anew_for_each_use() -> None:
    spec = PrioritySpec(kind="decay_limit_randomization", args={"decay": 0.0, "sigma": 3.0})
    drawn = [make_priority(spec)(entry(number, uses=uses)) for number in range(1000) for uses in range(2)]
    again = [make_priority(spec)(entry(number, uses=uses)) for number in range(1000) for uses in range(2)]
    assert drawn == again
    assert len(set(drawn)) == 2000
    assert abs(statistics.fmean(drawn)) < 0.2
    assert abs(statistics.stdev(drawn) - 3.0) < 0.15
    within = sum(abs(each) < 3.0 for each in drawn) / 2000
    assert abs(within - 0.6827) < 0.03
    pairs = zip(drawn[::2], drawn[1::2], strict=True)
    assert abs(statistics.fmean(a * b for a, b in pairs)) < 0.9  # of 9: uses do not hang together


@pytest.mark.parametrize("args", [{"decay": -1.0}, {"sigma": -0.1}, {"use_count_limit": -1}, {"decai": 1.0}])
def test_arguments_that_make_no_sense_are_refused(args: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_priority(PrioritySpec(kind="decay_limit_randomization", args=args))


def test_every_priority_function_orders_any_experience() -> None:
    for name in PRIORITIES.names():
        spec = PolicySpec(priority=PrioritySpec(kind=name))
        priority = make_priority(spec.priority)
        assert make_policy(spec)
        assert all(isinstance(priority(entry(n, uses=n)), float) for n in range(4))
