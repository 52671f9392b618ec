"""`foreseen`: the consequence of a command's event for an experiment as it is now; pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

from rftd.daemon.cli.output.quantity import lasting, size
from rftd.daemon.run.consequence import Consequence
from rftd.daemon.run.operations import StandingSweep
from rftd.daemon.run.registry import Entry
from rftd.daemon.run.why.run_snapshot import RunSnapshot
from rftd.daemon.run.why.under_way import WorkUnderWay
from rftd.daemon.run.why.workers import resident_bytes
from rftd.streams.events import experiment as life
from rftd.streams.events.batch import ExperienceGivenUp, ExperiencePrioritized
from rftd.streams.events.registry import Event
from rftd.streams.events.sweep import SweepSubmitted
from rftd.streams.events.task import TaskRetried, TasksAdded, TasksEnded
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.control.hold import ends_by_itself

_NAMES: Final = 3
"""Maximum number of experiments named in a sentence."""
Figures = dict[str, float]
"""Figures of a sentence, by name."""


class Outlook(NamedTuple):
    """An experiment and its daemon at one moment, as needed to foresee a command's effect."""

    entry: Entry
    """The experiment concerned by the command."""
    line: Sequence[Entry]
    """Running and queued experiments in starting order."""
    slots: int
    """Number of experiments that may run at once."""
    release_after_s: float
    """Seconds from a person's pause to the release of the workers."""
    snapshot: RunSnapshot | None = None
    """Reading of the experiment's run; None without a run here."""
    work: WorkUnderWay | None = None
    """Rollouts or held-out rows under way; None without any."""

    @property
    def state(self) -> RunState | None:
        """Folded state of the experiment's run; None without a run here."""
        return None if self.snapshot is None else self.snapshot.state

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the experiment's living workers at their last heartbeats, in bytes."""
        return 0 if self.snapshot is None else resident_bytes(self.snapshot)


def foreseen(event: Event, outlook: Outlook) -> Consequence:
    """Returns the consequence of a legal command recorded as `event`."""
    match event:
        case life.ExperimentPaused():
            words, figures = _pause_effect(outlook)
        case life.ExperimentResumed():
            words, figures = _resume_effect(outlook)
        case life.ExperimentCancelled():
            words, figures = _cancel_effect(outlook)
        case life.ExperimentPrioritized():
            words, figures = _priority_effect(event, outlook)
        case life.ExperimentAnnotated():
            words, figures = _annotation_effect(event)
        case ExperiencePrioritized():
            words, figures = _tag_effect(event, outlook)
        case ExperienceGivenUp():
            words, figures = _give_up_effect(event, outlook)
        case TasksAdded() | TasksEnded():
            words, figures = _task_queue_effect(event, outlook)
        case TaskRetried():
            words = (
                f"leases task {event.stage}.{event.sequence} once more: {event.repeat_times} rollouts with weights of "
                f"version {event.min_version} or newer"
            )
            figures = {"rollouts": event.repeat_times, "min_version": event.min_version}
        case _:
            raise AssertionError(f"no command is recorded as {type(event).__name__}")
    return Consequence(name=outlook.entry.name, sentence=words, figures=figures)


def new_experiment(spec: ExperimentSpec, line: Sequence[Entry], slots: int, history: str = "") -> Consequence:
    """Returns the consequence of submitting a new experiment; `history` names the steps shared with a parent."""
    queue = [entry for entry in line if entry.status is Status.QUEUED]
    turn = 1 + sum(entry.spine.priority >= spec.priority for entry in queue)
    words, figures = _turn(turn, queue, line, slots)
    steps = sum(stage.total_steps for stage in spec.stages)
    return Consequence(
        name=spec.name,
        sentence=f"a new experiment of {steps} steps{history}; {words}",
        figures={**figures, "steps": steps},
        warnings=list(spec.warnings),
    )


def new_sweep(event: SweepSubmitted, line: Sequence[Entry], slots: int) -> Consequence:
    """Returns the consequence of submitting a sweep of checked runs."""
    queue = [entry for entry in line if entry.status is Status.QUEUED]
    words, figures = _turn(1 + len(queue), queue, line, slots)
    runs = len(event.points)
    return Consequence(
        name=event.name,
        sentence=f"{runs} runs, {event.at_once} at a time; the first {words}",
        figures={**figures, "runs": runs, "at_once": event.at_once},
    )


def cancelled_sweep(standing: StandingSweep) -> Consequence:
    """Returns the consequence of cancelling a sweep before its end."""
    unfinished = sum(not run.status.ended for run in standing.runs)
    unsubmitted = len(standing.sweep.points) - len(standing.runs)
    return Consequence(
        name=standing.sweep.name,
        sentence=f"cancels {unfinished} unfinished runs, and {unsubmitted} more are never submitted",
        figures={"runs_cancelled": unfinished, "runs_not_submitted": unsubmitted},
    )


def _pause_effect(outlook: Outlook) -> tuple[str, Figures]:
    """Returns sentence and figures for a pause."""
    spine = outlook.entry.spine
    if outlook.state is not None:
        spine = outlook.state.spine
    if ends_by_itself(spine):
        return f"stays paused ({spine.cause}), from now on until rftd resume", {}
    unfinished = _unfinished(outlook)
    figures = {"rollouts_draining": unfinished, "release_after_s": outlook.release_after_s}
    under_way = f"{_work(outlook, unfinished)} end first and are kept" if unfinished else "nothing is under way"
    words = f"{under_way}; nothing new starts"
    freed = outlook.memory_bytes
    memory = f" and free {size(freed)} of memory" if freed else ""
    words += f"; after {lasting(outlook.release_after_s)} the workers leave{memory}, and the slot is free"
    return words, {**figures, "memory_bytes": freed}


def _resume_effect(outlook: Outlook) -> tuple[str, Figures]:
    """Returns sentence and figures for a resume."""
    state = outlook.state
    if state is not None and not state.spine.released:
        steps, figures = _steps(state)
        return f"continues at once{steps}: its workers have not left", {**figures, "queue_position": 0}
    return _place(outlook.entry.spine.priority, outlook)


def _cancel_effect(outlook: Outlook) -> tuple[str, Figures]:
    """Returns sentence and figures for a cancellation: lost rollouts and tokens, untrained experiences, the newest
    checkpoint.
    """
    state = outlook.state
    if state is None or state.spine.stage < 0:
        where = "leaves the queue and " if outlook.entry.status is Status.QUEUED else ""
        return f"{where}ends for good; its recorded events and files stay", {"rollouts_lost": 0}
    unfinished = _unfinished(outlook)
    tokens = outlook.work.tokens if outlook.work is not None else 0
    waiting = len(state.replay_buffer.waiting) + len(state.replay_buffer.cooling)
    saved = max((step for step, _ in state.checkpoints), default=None)
    trained = state.spine.furthest
    steps, figures = _steps(state)
    words = f"ends for good{steps}: {_work(outlook, unfinished)} are lost, {waiting} experiences are never trained"
    if saved is None:
        words += "; no checkpoint was saved"
    else:
        behind = trained - saved
        words += f"; its newest checkpoint, of step {saved}, stays" + (f", {behind} steps behind" if behind else "")
    figures |= {"rollouts_lost": unfinished, "tokens_lost": tokens, "experiences_not_trained": waiting}
    return words, {**figures, **({} if saved is None else {"checkpoint_step": saved})}


def _priority_effect(event: life.ExperimentPrioritized, outlook: Outlook) -> tuple[str, Figures]:
    """Returns sentence and figures for a new priority: the place in the queue, and the former one."""
    entry = outlook.entry
    if entry.status is not Status.QUEUED:
        words = f"{entry.status} now: its priority {event.priority} counts at its next turn"
        return words, {"priority": event.priority}
    queue = [earlier for earlier in outlook.line if earlier.status is Status.QUEUED]
    before = 1 + queue.index(entry) if entry in queue else 1
    words, figures = _place(event.priority, outlook)
    return f"{words}; until now it was number {before}", {**figures, "former_position": before}


def _annotation_effect(event: life.ExperimentAnnotated) -> tuple[str, Figures]:
    """Returns sentence and figures for a note, star or labels."""
    target = f"rollout {event.experience}" if event.experience else "the experiment"
    parts: list[str] = []
    if event.note:
        parts.append(f"adds a note of {len(event.note)} characters")
    if event.star is not None:
        parts.append("sets the star" if event.star else "removes the star")
    if event.labels is not None:
        labels = ", ".join(f"{key}={label}" for key, label in event.labels.items()) or "none"
        parts.append(f"replaces all labels by {labels}")
    figures: Figures = {"note_characters": len(event.note), "labels": len(event.labels or {})}
    return f"{', '.join(parts)} on {target}", figures


def _tag_effect(event: ExperiencePrioritized, outlook: Outlook) -> tuple[str, Figures]:
    """Returns sentence and figures for a new priority of a group's experiences."""
    assert outlook.state is not None
    books = outlook.state.replay_buffer
    entries = chain(books.waiting.values(), books.cooling.values())
    waiting = sum(entry.group.group == event.group for entry in entries)
    words = f"{waiting} waiting experiences of the group get priority {event.priority:g}"
    return words, {"experiences": waiting, "priority": event.priority}


def _give_up_effect(event: ExperienceGivenUp, outlook: Outlook) -> tuple[str, Figures]:
    """Returns sentence and figures for an experience given up, and its batch."""
    assert outlook.state is not None
    spine = outlook.state.spine
    plans = [plan.event for step, plan in spine.plans.items() if step > spine.furthest]
    steps = [plan.step for plan in plans if any(item.experience == event.experience for item in plan.experiences)]
    batch = f", and the batch of step {steps[0]} is planned anew" if steps else ""
    return f"retires experience {event.experience}, never to be trained{batch}", {"batches_abandoned": len(steps)}


def _task_queue_effect(event: TasksAdded | TasksEnded, outlook: Outlook) -> tuple[str, Figures]:
    """Returns sentence and figures for tasks added to a queue, or for its end."""
    spine = outlook.entry.spine if outlook.state is None else outlook.state.spine
    before = spine.queues.of(event.stage).rows
    if isinstance(event, TasksAdded):
        after = before + len(event.tasks)
        return f"adds {len(event.tasks)} tasks: the queue then has {after}", {"tasks": after}
    begun = 0 if outlook.state is None else min(before, outlook.state.groups.next_sequence.get(event.stage, 0))
    words = f"no further task can be added; {before - begun} of {before} have not begun, and the last ones end the run"
    return words, {"tasks": before, "tasks_not_begun": before - begun}


def _unfinished(outlook: Outlook) -> int:
    """Returns the number of unfinished rollouts or held-out rows; 0 without work under way."""
    if outlook.work is not None:
        return max(0, outlook.work.total - outlook.work.ended)
    return 0


def _work(outlook: Outlook, unfinished: int) -> str:
    """Returns a count with its unit, such as `8 rollouts under way`."""
    return f"{unfinished} {outlook.work.kind if outlook.work is not None else 'rollouts'} under way"


def _steps(state: RunState) -> tuple[str, Figures]:
    """Returns ` at step 3 of 10` with its figures; empty before the first stage."""
    spine = state.spine
    if spine.stage < 0:
        return "", {}
    words = f" at step {spine.furthest} of {spine.last_version} of stage {spine.stage_spec().name}"
    return words, {"step": spine.furthest, "steps_left": spine.last_version - spine.furthest}


def _place(priority: int, outlook: Outlook) -> tuple[str, Figures]:
    """Returns sentence and figures for the experiment's place in the queue if it had priority `priority`."""
    entry = outlook.entry
    queue = [earlier for earlier in outlook.line if earlier.status is Status.QUEUED and earlier.id != entry.id]
    key = (-priority, entry.submitted_ns, entry.id)
    turn = 1 + sum((-earlier.spine.priority, earlier.submitted_ns, earlier.id) < key for earlier in queue)
    return _turn(turn, queue, [earlier for earlier in outlook.line if earlier.id != entry.id], outlook.slots)


def _turn(place: int, queue: Sequence[Entry], line: Sequence[Entry], slots: int) -> tuple[str, Figures]:
    """Returns sentence and figures for starting at `place` of the queue, counted from 1, behind the running experiments
    of `line`.
    """
    running = [entry for entry in line if entry.status is not Status.QUEUED]
    free = max(0, slots - len(running))
    figures: Figures = {"queue_position": place, "free_slots": free, "slots": slots}
    if place <= free:
        return f"starts at once: {free} of {slots} slots are free", figures
    ahead = [entry.name for entry in [*running, *queue[: place - 1]]]
    more = f" and {len(ahead) - _NAMES} more" if len(ahead) > _NAMES else ""
    return f"waits as number {place} in the queue, behind {', '.join(ahead[:_NAMES])}{more}", figures
