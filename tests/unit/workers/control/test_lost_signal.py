"""Runs that cannot learn are named within five batches, by planner, assembly, trainer engine, fold and controller."""

from __future__ import annotations

from typing import Any

import pytest
from synthetic.worlds.desk import REPEAT, Desk, stage_of
from synthetic.worlds.signal_lab import MIXED, Lab, Rollouts, Run, said_of

from rftd.daemon.run.why.life import driven, ended, lost_signal
from rftd.daemon.run.why.wait import sentence_of
from rftd.ops.errors import ConflictError
from rftd.ops.words import Level
from rftd.streams.events.experiment import (
    ExperimentFailed,
    ExperimentPaused,
    ExperimentResumed,
    SignalLost,
    SignalRegained,
)
from rftd.streams.events.registry import Event
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds import signal
from rftd.streams.folds.spine import Status
from rftd.streams.spec.spec import TrainerSpec
from rftd.workers.control.hold import SIGNAL_LOST
from rftd.workers.training.group_samples import equal_groups

LOST = [
    Run(signal.ALL_PROMPTS_CUT, Rollouts((0.0,) * REPEAT, 0, True, "prompt_truncated"), says="max_prompt_tokens (16)"),
    Run(signal.ALL_ANSWERS_EMPTY, Rollouts((0.0,) * REPEAT, tokens=1), says="every answer is empty"),
    Run(signal.ALL_ANSWERS_CUT, Rollouts((0.0,) * REPEAT, finish="length"), says="max_response_tokens (48)"),
    Run(signal.NO_TOKENS, Rollouts(MIXED, masked=True), says="each is masked"),
    Run(signal.REWARDS_EQUAL, says="equal within every group (all 0)"),
    Run(signal.REWARDS_EQUAL, Rollouts((0.1,) * REPEAT), says="equal within every group (all 0.1)"),
    Run(signal.LEARNING_RATE_ZERO, Rollouts(), lr=0.0, says="the learning rate is zero"),
    Run(signal.NOT_FINITE, Rollouts(), engine={"nan_at_step": 1, "nan_steps": 99}, says="the loss is nan"),
    Run(
        signal.ADVANTAGE_ZERO,
        Rollouts(),
        {"advantage_args": {"std_threshold": 9.0, "duplicate_experiences": True}},
        says="advantage of every trained token is zero",
    ),
    Run(signal.FILTERED, algorithm={"advantage_args": {"std_threshold": 0.0}}, says="no batch is formed"),
]


@pytest.mark.anyio
@pytest.mark.parametrize("run", LOST, ids=lambda run: f"{run.cause}-{run.says[-8:]}")
async def test_a_run_that_cannot_learn_is_named_and_pauses(run: Run) -> None:
    lab = Lab(run)
    said: list[Event] = []
    for _ in range(4):
        await lab.batch()
        said += lab.events
    [lost] = said
    assert isinstance(lost, SignalLost)
    assert lost.cause == run.cause
    assert lost.step == 1, "the first batch"
    assert run.says in lost.reason
    spine = lab.desk.state.spine
    [wait] = lost_signal(spine)
    assert (wait.state, wait.level, wait.unblock) == (run.cause, Level.STUCK, lost.fix)
    assert spine.status is Status.RUNNING
    await lab.batch()
    [paused] = lab.events
    assert isinstance(paused, ExperimentPaused)
    assert paused.cause == SIGNAL_LOST
    assert paused.reason.startswith("5 batches in a row taught nothing: ")
    assert lost.fix in paused.reason
    assert lab.events == [], "only a person ends it"


@pytest.mark.anyio
async def test_a_reward_that_always_raises_is_named_before_it_ends_the_run() -> None:
    lab = Lab(Run(signal.ROLLOUTS_FAILED, Rollouts(())))
    said: list[Event] = []
    for _ in range(5):
        await lab.batch()
        said += lab.events
    lost, failed = said
    assert isinstance(lost, SignalLost)
    assert lost.cause == signal.ROLLOUTS_FAILED
    assert "RFTD-WRK-003: no" in lost.reason
    assert isinstance(failed, ExperimentFailed)
    assert "nothing was learnt from step 1 on: rollouts_failed" in ended(lab.desk.state.spine).waiting_for


@pytest.mark.anyio
async def test_a_run_that_learns_is_never_named() -> None:
    lab = Lab(Run("", Rollouts()))
    for _ in range(10):
        await lab.batch()
        assert lab.events == []
    assert list(lost_signal(lab.desk.state.spine)) == []


@pytest.mark.anyio
@pytest.mark.parametrize("threshold", [{}, {"advantage_args": {"std_threshold": 0.0}}], ids=["trained", "filtered"])
async def test_a_solved_task_is_told_and_pauses_nothing(threshold: dict[str, Any]) -> None:
    lab = Lab(Run(signal.SOLVED, Rollouts((1.0,) * REPEAT), threshold))
    said: list[Event] = []
    for _ in range(8):
        await lab.batch()
        said += lab.events
    [lost] = said
    assert isinstance(lost, SignalLost)
    assert lost.cause == signal.SOLVED
    assert lost.reason == "every answer earns the full reward: 1"
    spine = lab.desk.state.spine
    [wait] = lost_signal(spine)
    assert wait.level is Level.WORKS
    assert sentence_of(wait).startswith(f"signal solved since step {lost.step}: every answer earns the full reward: ")
    spine.status = Status.COMPLETED
    assert ended(spine).waiting_for == f"solved since step {lost.step}: {lost.reason}"


@pytest.mark.anyio
async def test_right_is_what_earned_most_so_far() -> None:
    """Rewards of at most two are not all right with one; those that once rose to a tenth are with that tenth."""
    for best, equal, cause in ((2.0, 1.0, signal.REWARDS_EQUAL), (0.1, 0.1, signal.SOLVED)):
        lab = Lab(Run("", Rollouts((0.0, best, 0.0, best))))
        await lab.batch()
        assert lab.events == []
        batches = signal.SOLVED_BATCHES if cause == signal.SOLVED else signal.STEADY_BATCHES
        [lost] = await said_of(lab, ((equal,) * REPEAT,) * batches)
        assert isinstance(lost, SignalLost)
        assert lost.cause == cause
        assert lost.step == 2


@pytest.mark.anyio
async def test_whoever_resumes_it_gives_it_as_many_batches_again() -> None:
    lab = Lab(Run(signal.REWARDS_EQUAL))
    for _ in range(5):
        await lab.batch()
    assert [type(each) for each in (*lab.events, *lab.events)] == [SignalLost, ExperimentPaused]
    spine = lab.desk.state.spine
    assert driven_state(lab) == SIGNAL_LOST
    lab.desk.put(ExperimentResumed(reason="on"))
    for _ in range(4):
        await lab.batch()
        assert lab.events == []
    await lab.batch()
    [paused] = lab.events
    assert isinstance(paused, ExperimentPaused)
    lab.desk.put(ExperimentResumed())
    assert [type(event) for event in await said_of(lab, (MIXED,) * 3)] == [SignalRegained]
    assert spine.status is Status.RUNNING


def driven_state(lab: Lab) -> str:
    """The word of `rftd why` for the experiment; a command may end its pause."""
    from rftd.daemon.run.supervisor.inbox import check_transition
    from rftd.daemon.run.why.run_snapshot import RunSnapshot
    from rftd.workers.control.liveness import Liveness

    try:
        check_transition(lab.desk.state.spine, ExperimentResumed())
    except ConflictError as error:
        return str(error)
    return driven(RunSnapshot(state=lab.desk.state, liveness=Liveness(), now_s=0.0, now_ns=0)).state


def test_an_actor_without_a_gradient_is_named_unless_a_critic_learns() -> None:
    for norms, cause in (
        ({"actor/grad_norm": 0.0}, signal.GRADIENT_ZERO),
        ({"actor/grad_norm": 0.0, "critic/grad_norm": 1.0}, ""),
        ({"actor/grad_norm": 0.5}, ""),
    ):
        desk = Desk(stage_of(trainer=TrainerSpec(engine="fake", max_idle_steps=1)))
        done = StepCompleted(
            batch=desk.recorder.ids.new(),
            step=1,
            stage=0,
            generation=0,
            checksum="c1",
            items=1,
            tokens=9,
            duration_s=0.1,
            metrics={"actor/lr": 1.0, **norms},
        )
        desk.put(done)
        assert desk.state.spine.signal.cause == cause


def test_a_schedule_that_ends_at_zero_stops_nothing() -> None:
    desk = Desk(stage_of(total_steps=2, trainer=TrainerSpec(engine="fake", max_idle_steps=1)))
    for step, rate, cause in ((1, 0.5, ""), (2, 0.0, "")):
        done = StepCompleted(
            batch=desk.recorder.ids.new(),
            step=step,
            stage=0,
            generation=0,
            checksum=f"c{step}",
            items=1,
            tokens=9,
            duration_s=0.1,
            metrics={"actor/lr": rate},
        )
        desk.put(done)
        assert desk.state.spine.signal.cause == cause


@pytest.mark.parametrize(
    ("rewards", "share"),
    [([[0, 0], [1, 1]], 1.0), ([[0, 1], [1, 1]], 0.5), ([[0], [1]], 0.0), ([[1], [1]], 1.0), ([[1], [0, 1]], 0.0)],
)
def test_the_share_of_equal_groups(rewards: list[list[float]], share: float) -> None:
    assert equal_groups(rewards) == share
