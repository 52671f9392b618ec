"""Runs that come to nothing fail, and say why."""

from __future__ import annotations

from desk import BATCH, REPEAT, Desk

from rftd.daemon.supervisor.controller import Controller
from rftd.ops import limits
from rftd.streams.events.experiment import ExperimentFailed
from rftd.workers.dispatcher.closing import close_groups

BOUND = limits.INCOMPLETE_BATCHES_IN_A_ROW * BATCH // REPEAT


def close(desk: Desk, members: int) -> None:
    """One more group, with so many good rollouts."""
    lease = desk.lease(desk.state.groups.next_sequence.get(0, 0), desk.id)
    desk.produce(lease, range(members))
    for rollout in range(members, REPEAT):
        desk.fail(lease, rollout)
    desk.obey(close_groups(desk.state, stage_over=False))


def test_groups_of_one_member_each_fail_the_experiment_in_the_end() -> None:
    desk = Desk()
    controller = Controller(desk.state)
    for _ in range(BOUND - 1):
        close(desk, 1)
    assert controller.decide() == ()
    close(desk, 1)
    [failed] = controller.decide()
    assert isinstance(failed, ExperimentFailed) and failed.code == "RFTD-WRK-003"
    assert f"fewer than 2 of {REPEAT} rollouts succeeded in each of {BOUND} groups in a row" in failed.reason
    assert "fix: " in failed.reason and failed.reason.endswith("the last: no")


def test_one_group_that_can_be_trained_starts_the_count_anew() -> None:
    desk = Desk()
    controller = Controller(desk.state)
    for members in [1] * (BOUND - 1) + [2] + [1] * (BOUND - 1):
        close(desk, members)
        assert controller.decide() == ()


def test_groups_without_any_member_fail_it_sooner() -> None:
    desk = Desk()
    controller = Controller(desk.state)
    for _ in range(limits.FAILED_GROUPS_IN_A_ROW):
        assert controller.decide() == ()
        close(desk, 0)
    [failed] = controller.decide()
    assert isinstance(failed, ExperimentFailed)
    assert failed.reason.startswith(f"no rollout of {limits.FAILED_GROUPS_IN_A_ROW} groups in a row succeeded")
