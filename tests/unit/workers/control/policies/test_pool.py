"""The buffer against a plain list: order, groups that stay together, rest, and what is forgotten."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.worlds.entries import entry, numbers

from rftd.streams.folds.replay_buffer import BufferEntry
from rftd.workers.control.policies.buffer_index import BufferIndex, Order, ReadyGroup

ORDERS: dict[str, Callable[[ReadyGroup], Order]] = {
    "queue": lambda ready: (-ready.priority, ready.offset),
    "dataset": lambda ready: (ready.sequence, ready.offset),
    "oldest version first": lambda ready: (ready.oldest_version, -ready.priority, ready.offset),
    "none": lambda ready: (),
}


class PlainList:
    """What a pool promises, said with a list that is sorted each time."""

    def __init__(self, order: Callable[[ReadyGroup], Order]) -> None:
        self.order = order
        self.entries: dict[int, BufferEntry] = {}
        self.now_ns = 0

    def groups(self) -> list[ReadyGroup]:
        found: dict[Any, list[BufferEntry]] = {}
        for each in self.awake():
            found.setdefault(each.group.group, []).append(each)
        return sorted((self._ready(entries) for entries in found.values()), key=self.order)

    def _ready(self, entries: list[BufferEntry]) -> ReadyGroup:
        return ReadyGroup(
            entries[0].group.group,
            entries[0].group.offset,
            entries[0].sequence,
            max(each.priority for each in entries),
            min(each.member.oldest_version for each in entries),
            sorted(entries, key=lambda each: each.index),
        )

    def awake(self) -> list[BufferEntry]:
        return [each for each in self.entries.values() if each.eligible_at_ns <= self.now_ns]

    def resting(self) -> list[BufferEntry]:
        return [each for each in self.entries.values() if each.eligible_at_ns > self.now_ns]


def puts() -> st.SearchStrategy[Any]:
    return st.tuples(
        st.just("put"),
        st.builds(
            lambda number, version, priority, rest, uses: entry(
                number, version=version, priority=priority, eligible_at_ns=rest, uses=uses, sequence=99 - number // 2
            ),
            st.integers(0, 7),
            st.integers(0, 4),
            st.sampled_from([-1.0, 0.0, 0.0, 2.5]),
            st.sampled_from([0, 0, 5, 10, 15]),
            st.integers(0, 2),
        ),
    )


OPERATIONS = st.lists(
    puts()
    | st.tuples(st.just("drop"), st.integers(0, 7))
    | st.tuples(st.just("tag"), st.tuples(st.integers(0, 7), st.sampled_from([-1.0, 0.0, 4.0])))
    | st.tuples(st.just("awake"), st.sampled_from([0, 4, 5, 10, 20]))
    | st.tuples(st.just("together"), st.lists(puts() | st.tuples(st.just("drop"), st.integers(0, 7)), max_size=8)),
    max_size=60,
)


@pytest.mark.parametrize("name", ORDERS)
@settings(max_examples=120, deadline=None)
@given(operations=OPERATIONS, without=st.frozensets(st.integers(0, 13), max_size=4), version=st.integers(0, 5))
def test_a_pool_is_a_sorted_list(
    name: str, operations: list[tuple[str, Any]], without: frozenset[int], version: int
) -> None:
    plain = PlainList(ORDERS[name])
    buffer = BufferIndex(ORDERS[name], lambda each: each.priority)
    for kind, value in operations:
        if kind == "put":
            buffer.put(value)
            plain.entries[value.member.experience.int] = value
        elif kind == "tag" and value[0] in plain.entries:
            changed = msgspec.structs.replace(plain.entries[value[0]], priority=value[1])
            buffer.put(changed)
            plain.entries[value[0]] = changed
        elif kind == "drop":
            buffer.drop(entry(value).member.experience)
            plain.entries.pop(value, None)
        elif kind == "together":
            changes = dict[int, BufferEntry | None]()
            for each, of in value:
                changes |= {of.member.experience.int: of} if each == "put" else {of: None}
            buffer.change({UUID(int=number): changed for number, changed in changes.items()})
            plain.entries = {k: v for k, v in (plain.entries | changes).items() if v is not None}
        elif kind == "awake":
            buffer.awake(value)
            plain.now_ns = value
        same(buffer, plain, name, without, version)


def same(buffer: BufferIndex, plain: PlainList, name: str, without: frozenset[int], version: int) -> None:
    assert (len(buffer), buffer.size) == (len(plain.awake()), len(plain.entries))
    seen, groups = numbers(buffer.in_order()), [numbers(ready.entries) for ready in plain.groups()]
    if name == "none":  # equal keys: in some order, but each group is in one piece
        assert sorted(seen) == sorted(number for group in groups for number in group)
        for group in groups:
            assert seen[seen.index(group[0]) :][: len(group)] == group
    else:
        assert seen == [number for group in groups for number in group]
        assert numbers(buffer.lowest()) == [number for group in reversed(groups) for number in group]
    skipped = frozenset(entry(number).member.experience for number in without)
    assert numbers(buffer.in_order(skipped)) == [number for number in seen if number not in without]
    old = [each for each in plain.entries.values() if each.member.oldest_version < version]
    assert sorted(numbers(buffer.older_than(version))) == sorted(numbers(old))
    assert buffer.oldest_version == min((each.member.oldest_version for each in plain.entries.values()), default=None)
    assert buffer.next_eligible_ns == min((each.eligible_at_ns for each in plain.resting()), default=None)


def test_what_was_changed_while_it_rests_wakes_once() -> None:
    buffer = BufferIndex(ORDERS["queue"], lambda each: each.priority)
    resting = entry(0, eligible_at_ns=10)
    buffer.put(resting)
    buffer.put(msgspec.structs.replace(resting, priority=3.0))
    buffer.awake(10)
    assert numbers(buffer.in_order()) == [0]
    assert len(buffer) == 1
    buffer.drop(resting.member.experience)
    assert not list(buffer.in_order())
    assert buffer.size == 0


def test_a_group_is_as_urgent_as_its_most_urgent_member_and_stays_together() -> None:
    urgent = entry(3, priority=9.0)
    buffer = BufferIndex(ORDERS["queue"], lambda each: each.priority, [entry(0), entry(1), entry(2), urgent, entry(4)])
    assert numbers(buffer.in_order()) == [2, 3, 0, 1, 4]
    buffer.drop(urgent.member.experience)
    assert numbers(buffer.in_order()) == [0, 1, 2, 4]


def test_a_priority_that_is_no_number_comes_last() -> None:
    """A third party's function may give one, and no order is broken by it."""
    strange = {1: math.nan, 3: math.inf, 5: -math.inf}
    buffer = BufferIndex(ORDERS["queue"], lambda each: strange.get(each.member.experience.int, 0.0))
    entries = [entry(number, group=number) for number in range(6)]
    for each in entries:
        buffer.put(each)
    assert numbers(buffer.in_order()) == [3, 0, 2, 4, 1, 5]
    for each in entries:
        buffer.drop(each.member.experience)
    assert not list(buffer.in_order())
    assert buffer.size == 0
