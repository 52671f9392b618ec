"""A world for one policy: rollouts of random length, a planner, a trainer and announcements, in virtual time.

No log and no events: what the roles do with a policy's answers, and nothing else. Every answer is held against what a
policy promises; what becomes of each experience is counted.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from itertools import count
from uuid import UUID

import msgspec
from synthetic.worlds.entries import entry

from rftd.streams.folds.replay_buffer import BufferEntry
from rftd.streams.spec.schedule import plan_ahead
from rftd.streams.spec.spec import PolicySpec
from rftd.workers.control.policies.buffer_index import BufferIndex
from rftd.workers.control.policies.policy import Flight, PolicyView, StalenessPolicy
from rftd.workers.control.policies.priorities import make_priority

MOST_TURNS = 20_000
STEP_NS = 1_000_000_000
"""The virtual time that one step takes."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes that an experiment asks for beside its policy."""

    steps: int
    groups: int
    """The size of a batch, in groups."""
    repeat_times: int
    interval: int
    """Weights are announced every so many steps, and at the end."""
    slots: int
    """Groups that explorers take at once."""
    first_version: int
    tail: float
    """The longest rollout takes so many steps' time."""
    fail_p: float


class PolicyWorld:
    """One stage from its first group to its last step; raises AssertionError where a promise is broken."""

    def __init__(self, policy: StalenessPolicy, spec: PolicySpec, sizes: Sizes, seed: int) -> None:
        self.policy, self.spec, self.sizes = policy, spec, sizes
        self.random = random.Random(seed)
        self.batch = sizes.groups * sizes.repeat_times
        self.now_ns = 0
        self.version = self.published = sizes.first_version
        self.planned: list[list[BufferEntry]] = []
        self.flights: dict[int, Flight] = {}
        self.landing: list[tuple[int, int]] = []
        self.numbers, self.sequences = count(), count()
        self.entries: dict[UUID, BufferEntry] = {}
        self.buffer = BufferIndex(policy.order, make_priority(spec.priority))
        self.uses: Counter[UUID] = Counter()
        self.retired: Counter[str] = Counter()
        self.produced = 0
        self.gone = 0
        self._trained_ns: int | None = None
        self.most_supply = 0

    def run(self) -> None:
        """The world runs until every step is trained."""
        for _ in range(MOST_TURNS):
            self._dispatch()
            before = self.retired.total(), len(self.flights)
            self._give_up()
            self._plan()
            self._books()
            if (self.retired.total(), len(self.flights)) != before:
                continue  # whoever admits may have been kept by what is gone now
            if self.version - self.sizes.first_version == self.sizes.steps:
                return
            self._next()
        raise AssertionError(f"no end after {MOST_TURNS} turns: {self.view()}")

    def view(self) -> PolicyView:
        """The counts as the planner gives them."""
        cooling = sum(each.uses > 0 for each in self.entries.values())
        return PolicyView(
            version=self.version,
            first_version=self.sizes.first_version,
            published_version=self.published,
            starting_version=self.published,
            total_steps=self.sizes.steps,
            planned_steps=len(self.planned),
            batch_size=self.batch,
            repeat_times=self.sizes.repeat_times,
            planned_experiences=len(self.uses),
            waiting_experiences=len(self.entries) - cooling,
            cooling_experiences=cooling,
            inflight_rollouts=len(self.flights) * self.sizes.repeat_times,
        )

    def _dispatch(self) -> None:
        view = self.view()
        groups = self.policy.admit(view)
        assert isinstance(groups, int)
        assert 0 <= groups < 10**9
        assert groups == self.policy.admit(view)
        for _ in range(min(groups, self.sizes.slots - len(self.flights))):
            number = next(self.sequences)
            took = self.random.expovariate(1.0) * self.sizes.tail / 4
            heapq.heappush(self.landing, (self.now_ns + round(min(took, self.sizes.tail) * STEP_NS), number))
            self.flights[number] = Flight(UUID(int=number), self.published)
        self.most_supply = max(self.most_supply, self.view().supply)

    def _give_up(self) -> None:
        flights, view = list(self.flights.values()), self.view()
        aborted = self.policy.abort_inflight(view, flights)
        assert aborted == self.policy.abort_inflight(view, flights)
        assert all(flight in flights for flight in aborted)
        for flight in aborted:
            del self.flights[flight.group.int]

    def _plan(self) -> None:
        first = self.sizes.first_version
        while (step := first + len(self.planned) + 1) <= min(
            self.version + plan_ahead(self.spec), first + self.sizes.steps
        ):
            self.buffer.awake(self.now_ns)
            if self._evict():
                continue
            floor = self.policy.waits_for(self.view())
            assert floor == self.policy.waits_for(self.view())
            if floor is not None and any(flight.oldest_version <= floor for flight in self.flights.values()):
                return
            chosen = self._select(step)
            if len(chosen) < self.batch:
                return
            self.planned.append(chosen)
            for each in chosen:
                self._use(each)

    def _evict(self) -> int:
        view, before = self.view(), self._kept()
        parts = list(self.policy.evict(view, self.buffer))
        again = list(self.policy.evict(view, self.buffer))
        assert [(part.reason, list(part.entries)) for part in parts] == [(p.reason, list(p.entries)) for p in again]
        assert self._kept() == before
        ids = [each.member.experience for part in parts for each in part.entries]
        assert len(ids) == len(set(ids))
        assert set(ids) <= self.entries.keys()
        for part in parts:
            assert part.reason
            for each in part.entries:
                self._leave(each)
                self.retired[part.reason] += 1
        return len(ids)

    def _select(self, step: int) -> Sequence[BufferEntry]:
        view, before, none = self.view(), self._kept(), frozenset[UUID]()
        chosen = list(self.policy.select(view, self.buffer, self.batch, none))
        assert chosen == list(self.policy.select(view, self.buffer, self.batch, none))
        assert self._kept() == before
        ids = [each.member.experience for each in chosen]
        assert len(ids) <= self.batch
        assert len(set(ids)) == len(ids)
        for each in chosen:
            assert self.entries[each.member.experience] == each
            assert each.eligible_at_ns <= self.now_ns
            if self.spec.bounded:
                assert step - 1 - each.member.oldest_version <= self.spec.max_staleness_versions
        few = self.policy.select(view, self.buffer, 1, none)
        assert list(few) == chosen[:1]
        rest = self.policy.select(view, self.buffer, self.batch, frozenset(ids[:1]))
        assert not {each.member.experience for each in rest} & set(ids[:1])
        return chosen

    def _use(self, each: BufferEntry) -> None:
        id = each.member.experience
        self._leave(each)
        self.uses[id] += 1
        assert self.uses[id] == each.uses + 1
        assert self.spec.max_uses == 0 or self.uses[id] <= self.spec.max_uses
        if self.uses[id] == self.spec.max_uses:
            self.gone += 1
            return
        rests_until_ns = self.now_ns + round(self.spec.cooldown_s * STEP_NS)
        self._enter(msgspec.structs.replace(each, uses=each.uses + 1, eligible_at_ns=rests_until_ns))

    def _next(self) -> None:
        """The next thing that happens: a step ends, a group lands, something has rested."""
        if self._trained_ns is None and self.version - self.sizes.first_version < len(self.planned):
            self._trained_ns = self.now_ns + STEP_NS
        self.buffer.awake(self.now_ns)
        rested_ns = self.buffer.next_eligible_ns
        times = [at for at, _ in self.landing[:1]]
        times += [self._trained_ns] if self._trained_ns is not None else []
        times += [rested_ns] if rested_ns is not None else []
        assert times, f"nothing can ever happen again: {self.view()}"
        self.now_ns = max(self.now_ns, min(times))
        if self._trained_ns is not None and self._trained_ns <= self.now_ns:
            self._trained_ns = None
            self.version += 1
            done = self.version - self.sizes.first_version
            if done % self.sizes.interval == 0 or done == self.sizes.steps:
                self.published = self.version
        while self.landing and self.landing[0][0] <= self.now_ns:
            self._land(heapq.heappop(self.landing)[1])

    def _land(self, number: int) -> None:
        flight = self.flights.pop(number, None)
        for _ in range(self.sizes.repeat_times if flight is not None else 0):
            if self.random.random() >= self.sizes.fail_p:
                assert flight is not None
                self.produced += 1
                of = entry(next(self.numbers), group=number, version=flight.oldest_version, newest=self.published)
                self._enter(of)

    def _enter(self, each: BufferEntry) -> None:
        self.entries[each.member.experience] = each
        self.buffer.put(each)

    def _leave(self, each: BufferEntry) -> None:
        del self.entries[each.member.experience]
        self.buffer.drop(each.member.experience)

    def _kept(self) -> tuple[list[BufferEntry], int]:
        return deepcopy(list(self.buffer.in_order())), self.buffer.size

    def _books(self) -> None:
        assert self.produced == len(self.entries) + self.gone + sum(self.retired.values())
