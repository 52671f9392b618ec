"""One batch proves nothing: the signal is lost, regained and solved after several in a row."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from synthetic.worlds.signal_lab import EQUAL, MIXED, RIGHT, Lab, Rollouts, Run, said_of

from rftd.daemon.run.why.life import lost_signal
from rftd.streams.events.experiment import ExperimentPaused, SignalLost, SignalRegained
from rftd.streams.folds import signal


@pytest.mark.anyio
@pytest.mark.parametrize(
    "rewards",
    [(EQUAL, MIXED), (EQUAL, EQUAL, MIXED), (RIGHT, MIXED), (RIGHT, RIGHT, EQUAL, RIGHT, MIXED)],
    ids=["one equal", "two equal", "nearly solved", "solved but for one"],
)
async def test_few_batches_without_a_difference_are_no_loss(rewards: Sequence[Sequence[float]]) -> None:
    lab = Lab(Run(""))
    assert await said_of(lab, (MIXED, *rewards * 4)) == []
    assert list(lost_signal(lab.desk.state.spine)) == []


@pytest.mark.anyio
async def test_a_loss_ends_with_several_batches_that_are_no_fault() -> None:
    """Right answers count, too: at the end of a run they alternate with batches that still teach something."""
    lab = Lab(Run(signal.REWARDS_EQUAL))
    [lost] = await said_of(lab, (EQUAL, EQUAL, EQUAL))
    assert await said_of(lab, (MIXED, RIGHT, EQUAL, RIGHT, MIXED)) == []
    assert lab.desk.state.spine.signal.lost == lost
    [regained] = await said_of(lab, (RIGHT,))
    assert regained == SignalRegained(number=2, stage=0, step=7)
    assert await said_of(lab, (MIXED, RIGHT) * 4) == []


@pytest.mark.anyio
async def test_a_pause_that_is_due_sooner_finds_its_loss_declared() -> None:
    lab = Lab(Run(signal.REWARDS_EQUAL, max_idle_steps=1))
    await lab.batch()
    assert [type(event) for event in (*lab.events, *lab.events)] == [SignalLost, ExperimentPaused]


@pytest.mark.anyio
async def test_each_change_is_said_once_however_late_the_controller_looks() -> None:
    early, late = Lab(Run("")), Lab(Run(""))
    rewards = (EQUAL,) * 3 + (MIXED,) * 3 + (RIGHT,) * 8 + (EQUAL,) * 3 + (MIXED,) * 3
    said = await said_of(early, rewards)
    for of_group in rewards:
        late.rollouts = Rollouts(of_group)
        await late.batch()
    assert [(type(event), getattr(event, "step", 0), getattr(event, "cause", "")) for event in said] == [
        (SignalLost, 1, signal.REWARDS_EQUAL),
        (SignalRegained, 4, ""),
        (SignalLost, 7, signal.SOLVED),
        (SignalLost, 15, signal.REWARDS_EQUAL),
        (SignalRegained, 18, ""),
    ]
    assert late.events == said
    before = msgspec.to_builtins(late.desk.state.spine.signal)
    for event in said:
        late.desk.put(event)
    assert msgspec.to_builtins(late.desk.state.spine.signal) == before, "one that comes again changes nothing"
