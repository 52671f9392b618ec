"""Milestones are lines of the daemon's log; those that somebody must act on are warnings."""

from __future__ import annotations

from uuid import UUID

from structlog.testing import capture_logs

from rftd.daemon.run.supervisor.milestones import tell
from rftd.ops.logs import logger
from rftd.streams.events.experiment import SignalLost
from rftd.streams.folds.signal import REWARDS_EQUAL, SOLVED


def test_a_solved_task_is_no_warning_and_a_wrong_one_is() -> None:
    events = [
        SignalLost(number=number, stage=1, step=4, cause=cause, reason="all rewards are 1", fix="f")
        for number, cause in enumerate((SOLVED, REWARDS_EQUAL), start=1)
    ]
    with capture_logs() as lines:
        tell(logger(), UUID(int=1), events)
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("signal.solved", "info"),
        ("signal.lost", "warning"),
    ]
