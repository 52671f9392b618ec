"""Sync points in detail: questions to the trainer, waits that last too long, weights that are too old."""

from __future__ import annotations

from synthetic.worlds.desk import BATCH, REPEAT, Desk, stage_of
from synthetic.worlds.sync_model import SyncModel

from rftd.streams.events import experiment
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.registry import Event
from rftd.streams.events.task import TaskLeased
from rftd.streams.events.weights import WeightsAnswered, WeightsOverdue, WeightsRequested
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import PolicySpec
from rftd.workers.control.dispatcher import Dispatcher
from rftd.workers.control.holds import AwaitsAnswer, AwaitsWeights, DispatcherHold, PolicyFull, SyncPoint
from rftd.workers.control.liveness import Liveness
from rftd.workers.control.planner import Planner

GROUPS = BATCH // REPEAT


class Explorers:
    """A desk with one explorer; time passes a second at a time."""

    def __init__(self, sync: Synchronizer, *, bound: int = 9, inflight: int = 4) -> None:
        policy = PolicySpec(max_staleness_versions=bound, max_inflight_batches=inflight)
        self.desk = Desk(stage_of(synchronizer=sync, policy=policy))
        self.desk.join()
        self.restart()
        self.now_s = 0

    def restart(self) -> None:
        """Another daemon."""
        self._dispatcher = Dispatcher(self.desk.state, Liveness(lost_after_s=1e9))

    def at(self, now_s: int) -> list[Event]:
        """Everything that is decided until then."""
        done: list[Event] = []
        while self.now_s < now_s:
            self.now_s += 1
            done += self.desk.obey(self._dispatcher.decide(self.now_s).decisions)
        return done

    def soon(self) -> list[Event]:
        """What is decided now."""
        return self.at(self.now_s + 2)

    def explore(self, leases: list[Event]) -> None:
        """They succeed."""
        for lease in leases:
            if isinstance(lease, TaskLeased):
                self.desk.produce(lease, range(REPEAT), version=lease.min_version)

    def train(self, step: int, *, publish: bool = False) -> None:
        """The next step."""
        self.desk.obey(Planner(self.desk.state).decide(self.desk.positions, 0).events)
        assert self.desk.execute() == step
        if publish:
            self.desk.publish(step)

    def held(self) -> DispatcherHold | None:
        """Why nothing is leased."""
        said = Dispatcher(self.desk.state, Liveness(lost_after_s=1e9)).decide(self.now_s)
        assert not said.decisions
        return said.hold


def leased(events: list[Event]) -> list[tuple[int, int, int, bool]]:
    """(window, place, version, pinned) of each lease."""
    return [(each.window, each.place, each.min_version, each.pinned) for each in events if isinstance(each, TaskLeased)]


def asked(events: list[Event]) -> list[tuple[int, int, int]]:
    """(window, number, version) of each request."""
    return [(each.window, each.number, each.version) for each in events if isinstance(each, WeightsRequested)]


def answered(desk: Desk, window: int, version: int, number: int = 0) -> None:
    desk.put(WeightsAnswered(stage=0, window=window, number=number, version=version))


def test_explorers_ask_once_and_go_on_with_what_they_are_told() -> None:
    explorers = Explorers(Synchronizer(sync_style="explorer_driven", sync_interval=1))
    begun = explorers.soon()
    assert leased(begun) == [(0, 0, 0, True), (0, 1, 0, True)]
    explorers.explore(begun[:1])
    explorers.soon()
    assert explorers.held() == SyncPoint(window=1, groups=1)
    explorers.explore(begun[1:])
    assert asked(explorers.soon()) == [(1, 0, 0)]
    assert explorers.held() == AwaitsAnswer(window=1, timeout_s=3600.0)
    explorers.restart()
    assert not explorers.soon(), "the question is in the log"
    answered(explorers.desk, 1, 0)
    begun = explorers.soon()
    assert leased(begun) == [(1, 0, 0, True), (1, 1, 0, True)], "no new model: they go on with what they have"
    explorers.train(1)
    explorers.explore(begun)
    assert asked(explorers.soon()) == [(2, 0, 0)]
    explorers.desk.publish(1)
    assert not leased(explorers.soon()), "what is published for another reason is no answer"
    answered(explorers.desk, 2, 1)
    assert leased(explorers.soon()) == [(2, 0, 1, True), (2, 1, 1, True)]


def test_the_trainer_is_asked_again_if_its_answer_is_too_old_to_be_trained() -> None:
    explorers = Explorers(Synchronizer(sync_style="explorer_driven", sync_interval=1), bound=0)
    explorers.explore(explorers.soon())
    explorers.soon()
    assert isinstance(explorers.held(), PolicyFull)
    explorers.train(1)
    assert asked(explorers.soon()) == [(1, 0, 0)]
    answered(explorers.desk, 1, 0)
    assert asked(explorers.soon()) == [(1, 1, 0)], "version 0 has had its turn"
    explorers.desk.publish(1)
    answered(explorers.desk, 1, 1, number=1)
    assert leased(explorers.soon()) == [(1, 0, 1, True), (1, 1, 1, True)]


def test_a_window_ends_early_if_its_weights_are_too_old_for_the_next_group() -> None:
    explorers = Explorers(Synchronizer(sync_style="trainer_driven", sync_interval=3), bound=1)
    assert [each[0] for each in leased(explorers.soon())] == [0] * (2 * GROUPS), "step 3 could not be on version 0"
    assert isinstance(explorers.held(), PolicyFull)


def test_the_wait_for_an_answer_ends_after_sync_timeout_and_never_silently() -> None:
    explorers = Explorers(Synchronizer(sync_style="explorer_driven", sync_interval=1, sync_timeout=60.0))
    explorers.explore(explorers.soon())
    assert asked(explorers.soon()) == [(1, 0, 0)]
    assert not explorers.at(50)
    explorers.restart()
    assert not explorers.at(100), "a new daemon counts from its own beginning"
    overdue, *begun = explorers.at(115)
    assert isinstance(overdue, WeightsOverdue)
    assert overdue.version == 0
    assert overdue.window == 1
    assert overdue.waited_s >= 60
    assert "sync_timeout (60 s)" in overdue.reason
    assert leased(begun) == [(1, 0, 0, True), (1, 1, 0, True)]
    answered(explorers.desk, 1, 0)
    explorers.explore(begun)
    assert asked(explorers.soon()) == [(2, 0, 0)], "the next sync point asks again"


def test_a_fixed_window_does_without_its_weights_only_if_the_bound_allows() -> None:
    for bound, version in ((9, 0), (0, -1)):
        explorers = Explorers(Synchronizer(sync_style="fixed", sync_interval=1, sync_timeout=60.0), bound=bound)
        explorers.explore(explorers.soon())
        explorers.soon()
        explorers.train(1)
        assert explorers.held() == AwaitsWeights(window=1, timeout_s=60.0, version=1)
        overdue, *begun = explorers.at(80)
        assert isinstance(overdue, WeightsOverdue)
        assert (overdue.wanted, overdue.version) == (1, version)
        assert len(begun) == (GROUPS if version >= 0 else 0)
        assert ("the wait continues" in overdue.reason) == (version < 0)
        explorers.desk.publish(1)
        more = explorers.soon()
        assert leased(more) == ([] if version >= 0 else [(1, 0, 1, True), (1, 1, 1, True)])


def test_time_does_not_count_while_the_experiment_is_paused() -> None:
    explorers = Explorers(Synchronizer(sync_style="explorer_driven", sync_interval=1, sync_timeout=60.0))
    explorers.explore(explorers.soon())
    explorers.at(40)
    explorers.desk.put(experiment.ExperimentPaused(reason="lunch"))
    assert not explorers.at(200)
    explorers.desk.put(experiment.ExperimentResumed())
    assert not explorers.at(250)
    assert isinstance(explorers.at(270)[0], WeightsOverdue)


def test_weights_that_are_gone_end_their_window() -> None:
    from rftd.streams.events.weights import WeightsRetired

    explorers = Explorers(Synchronizer(sync_style="trainer_driven", sync_interval=3), inflight=1)
    explorers.explore(explorers.soon())
    explorers.soon()
    explorers.train(1, publish=True)
    explorers.desk.put(WeightsRetired(version=0, generation=0, reason="newer versions exist"))
    assert leased(explorers.soon()) == [(1, 0, 1, True), (1, 1, 1, True)]


def test_a_group_that_replaces_a_failed_one_runs_on_the_present_window() -> None:
    explorers = Explorers(Synchronizer(sync_style="fixed", sync_interval=1, sync_offset=1), bound=1, inflight=2)
    begun = explorers.soon()
    assert leased(begun) == [(0, place, 0, True) for place in range(2 * GROUPS)]
    explorers.explore(begun[:3])
    for rollout in range(REPEAT):
        explorers.desk.fail(begun[3], rollout)
    again = explorers.soon()
    assert leased(again) == [(0, 4, 0, True)], "explore step 2 lacks a group, so its window goes on"
    explorers.train(1, publish=True)
    assert not explorers.soon()
    explorers.explore(again)
    assert leased(explorers.soon()) == [(1, 0, 1, True), (1, 1, 1, True)]


def test_an_incomplete_batch_moves_the_schedule_on() -> None:
    """What follows a batch that was planned before it was full feeds the next step, and needs its weights."""
    explorers = Explorers(Synchronizer(sync_style="fixed", sync_interval=1), bound=0, inflight=1)
    begun = explorers.soon()
    explorers.explore(begun[:1])
    explorers.soon()
    late_ns = 9 * 10**18
    (plan,) = explorers.desk.obey(Planner(explorers.desk.state).decide(explorers.desk.positions, late_ns).events)
    assert isinstance(plan, BatchPlanned)
    assert plan.incomplete
    explorers.explore(begun[1:])
    assert not leased(explorers.soon())
    explorers.desk.execute()
    explorers.desk.publish(1)
    assert {each[2] for each in leased(explorers.soon())} == {1}


def test_the_model_finds_a_schedule_that_cannot_go_on() -> None:
    """The control: a bound below the least that the schedule needs."""
    sync = Synchronizer(sync_style="trainer_driven", sync_interval=4)
    policy = PolicySpec(max_staleness_versions=1, max_inflight_batches=4)
    try:
        SyncModel(stage_of(synchronizer=sync, policy=policy), seed=1).run()
    except AssertionError as error:
        assert "nobody can go on" in str(error)
    else:
        raise AssertionError("it went on")
