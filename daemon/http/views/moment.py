"""`Moment`: what an experiment does now, how far it is and how long it takes, in figures and in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.daemon.cli.output.quantity import age, lasting
from rftd.daemon.http.views.memory import MemoryRow, memory_line
from rftd.daemon.http.views.route import After, Daemon, Name, read
from rftd.daemon.run.why.pause import PauseState
from rftd.daemon.run.why.under_way import WorkUnderWay, work_words
from rftd.daemon.run.why.wait import Wait, cause_of, sentence_of
from rftd.ops.clock import Clock
from rftd.ops.words import Level
from rftd.storage.queries.experiments import ExperimentSummary, StageRow, get_summary, list_stages
from rftd.storage.queries.steps import StepEnd, newest_steps

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

ENDED: Final = frozenset({"completed", "failed", "cancelled", "rejected"})
"""Final states, as in `Status.ended`."""
RECENT_STEPS: Final = 20
"""Number of newest steps in the pace: more would include an old stage or an old machine."""
LOST: Final = "signal_lost"  # the name in `workers.control.obstacle`, which imports folds
"""Code of an experiment paused for lack of a learning signal."""
_STALLED_S: Final = 60.0
"""Minimum seconds without a step until no remaining time is estimated."""
_STALLED_STEPS: Final = 5.0
"""Number of step durations without a step, and at least a minute, after which no remaining time is estimated."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds between the ends of consecutive steps, and tokens trained per second."""

    step_s: float
    """Seconds between the ends of consecutive steps."""
    tokens_per_s: float
    """Number of tokens trained per second."""
    last_ns: int
    """End of the newest step."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment at one point in time; every figure also in the words shown by all clients."""

    sentence: str
    """The present work, or the wait, with the remedy."""
    why: str | None
    """The worst wait not obvious from state and reason, as a sentence; null if nothing waits."""
    why_role: str | None
    """Role of the worst wait; null if nothing waits."""
    why_level: Level | None
    """Severity of the worst wait; null if nothing waits."""
    progress: str
    """Trained steps of all, and the stage."""
    pace: Pace | None
    """Training pace; null with fewer than two steps since the start or the last resume."""
    left_s: float | None
    """Remaining seconds of the stage at the present pace; null without progress."""
    pace_words: str | None
    """The pace in words, with the remaining time; null without a pace."""
    work: WorkUnderWay | None
    """Rollouts or held-out rows under way, with tokens drawn meanwhile."""
    work_words: str | None
    """The work under way in words; null without work."""
    pause: PauseState | None
    """State of the pause: draining, quiet with weights on the devices, or released; null unless paused."""
    evaluation: str | None
    """The evaluation under way, with its rows."""
    memory: list[str]
    """Memory of the workers of each stage against their device, a line each."""


@read("/v1/experiments/{name}/moment", Moment, tag="experiments", name="moment")
async def moment(daemon: Daemon, name: Name, after: After = None) -> Moment:
    """The present work of an experiment, its progress, pace and remaining time, in figures and in words."""
    async with daemon.read(after) as connection:
        id = await daemon.resolve(connection, name)
        return await moment_of(daemon, connection, id, await get_summary(connection, id))


async def moment_of(
    daemon: Daemon,
    connection: AsyncConnection,
    experiment: UUID,
    summary: ExperimentSummary,
    *,
    stages: Sequence[StageRow] | None = None,
    waits: Sequence[Wait] | None = None,
    memory: Sequence[MemoryRow] | None = None,
) -> Moment:
    """Returns the moment of an experiment; arguments already read by the caller are not read again."""
    stages = await list_stages(connection, experiment) if stages is None else stages
    memory = daemon.memory(experiment) if memory is None else memory
    if summary.state in ENDED:
        return last_moment(daemon, experiment, summary, stages=stages, waits=waits, memory=memory)
    present = list(waits) if waits is not None else await daemon.operations.waits(experiment)
    present += daemon.strangers(experiment) if waits is None else []
    return moment_from(
        summary,
        stages,
        present,
        steps=await newest_steps(connection, experiment, RECENT_STEPS + 1),
        waiting=daemon.waiting(experiment),
        work=daemon.operations.under_way(experiment),
        pause=daemon.operations.pause_state(experiment),
        memory=memory,
        clock=daemon.clock,
    )


def last_moment(
    daemon: Daemon,
    experiment: UUID,
    summary: ExperimentSummary,
    *,
    stages: Sequence[StageRow],
    waits: Sequence[Wait] | None = None,
    memory: Sequence[MemoryRow],
) -> Moment:
    """Returns the moment of an ended experiment, without a look at the tables."""
    return moment_from(
        summary,
        stages,
        daemon.strangers(experiment) if waits is None else waits,
        work=daemon.operations.under_way(experiment),
        memory=memory,
        clock=daemon.clock,
    )


def moment_from(
    summary: ExperimentSummary,
    stages: Sequence[StageRow],
    waits: Sequence[Wait],
    *,
    clock: Clock,
    steps: Sequence[StepEnd] = (),
    waiting: str | None = None,
    work: WorkUnderWay | None = None,
    pause: PauseState | None = None,
    memory: Sequence[MemoryRow] = (),
) -> Moment:
    """Returns the moment of these rows and waits. Pure, apart from the clock."""
    number = next((number for number, stage in enumerate(stages) if stage.name == summary.stage), None)
    since_ns = summary.state_ns if summary.state == "running" else 0
    pace = pace_of([step for step in steps if step.stage == number], since_ns=since_ns)
    seconds = left_s(summary, stages, pace, clock)
    worst = worst_of(waits, summary)
    told = worst is not None and worst.level <= Level.WAITS
    why = sentence_of(worst) if worst is not None and told else None
    progress = _progress(summary)
    words = None if work is None else work_words(work)
    evaluation = next((wait.waiting_for for wait in waits if wait.role == "evaluation"), None)
    life = next((wait for wait in waits if wait.role == "experiment" and wait.level <= Level.WAITS), None)
    if summary.state in ENDED:
        sentence = ": ".join(text for text in (summary.state, summary.code, summary.reason) if text)
    else:
        sentence = waiting or (sentence_of(life) if life else None) or why or words or progress
    return Moment(
        sentence=sentence,
        why=why,
        why_role=worst.role if worst is not None and told else None,
        why_level=worst.level if worst is not None and told else None,
        progress=progress,
        pace=pace,
        left_s=seconds,
        pace_words=None if pace is None else _pace_words(summary, stages, pace, seconds, clock),
        work=work,
        work_words=words,
        pause=pause,
        evaluation=evaluation,
        memory=[memory_line(row) for row in memory],
    )


def worst_of(waits: Sequence[Wait], summary: ExperimentSummary) -> Wait | None:
    """Returns the worst wait not obvious from the experiment's state and reason."""
    # The controller's constant wait for the stage's remaining steps is no news; nor is the reason for the pause.
    shown_roles = {"experiment"} if summary.reason else set()
    shown_roles |= {"signal"} if summary.code == LOST else set()
    news = [wait for wait in waits if wait.level is Level.STUCK or wait.role != "controller"]
    news = [wait for wait in news if wait.role not in shown_roles]
    worst = min(news, key=lambda wait: wait.level, default=None)
    return cause_of(worst, news) if worst is not None and worst.level <= Level.WAITS else worst


def pace_of(steps: Sequence[StepEnd], *, since_ns: int) -> Pace | None:
    """Returns the pace of the steps ended after `since_ns`, since nothing ran before; None with fewer than two."""
    ended = [step for step in steps if step.completed_ns >= since_ns]
    if len(ended) < 2:
        return None
    span_s = (ended[-1].completed_ns - ended[0].completed_ns) / 1e9
    if span_s <= 0:
        return None
    tokens = sum(step.tokens for step in ended[1:])
    return Pace(step_s=span_s / (len(ended) - 1), tokens_per_s=tokens / span_s, last_ns=ended[-1].completed_ns)


def left_s(summary: ExperimentSummary, stages: Sequence[StageRow], pace: Pace | None, clock: Clock) -> float | None:
    """Returns the remaining seconds of the stage at the present pace; None without progress."""
    if pace is None or summary.state != "running":
        return None
    # Below zero after a clock was set back, or on another machine.
    silent_s = max(0.0, (clock.now_ns() - pace.last_ns) / 1e9)
    if silent_s > max(_STALLED_S, _STALLED_STEPS * pace.step_s):
        return None
    stage = next((stage for stage in stages if stage.name == summary.stage), None)
    first = 0 if stage is None or stage.first_version is None else stage.first_version
    end = summary.total_steps if stage is None else first + stage.total_steps
    return max(0.0, (end - summary.step) * pace.step_s - silent_s)


def _pace_words(
    summary: ExperimentSummary, stages: Sequence[StageRow], pace: Pace, seconds: float | None, clock: Clock
) -> str:
    """Returns seconds per step, tokens per second, and the remaining time or the age of the last step, in words."""
    text = f"{pace.step_s:.3g} s a step, {pace.tokens_per_s:,.0f} trained tokens/s"
    if seconds is None:
        return f"{text}; the last step ended {age(pace.last_ns, clock)} ago"
    whole = not stages or summary.stage == stages[-1].name
    return f"{text}, about {lasting(seconds)} left" + ("" if whole else " in this stage")


def _progress(summary: ExperimentSummary) -> str:
    """Returns the trained steps of all steps in words, with the stage."""
    share = f" ({summary.step / summary.total_steps:.0%})" if summary.total_steps else ""
    stage = f", stage {summary.stage}" if summary.stage else ""
    return f"step {summary.step} of {summary.total_steps}{share}{stage}"
