"""The transitions that an experiment's state allows, and the commands that ask for them."""

from __future__ import annotations

from itertools import chain
from typing import Final
from uuid import UUID

from rftd.daemon.dlq.verdicts import check_retry
from rftd.ops.errors import ConflictError
from rftd.streams import topics
from rftd.streams.codec import Writer
from rftd.streams.envelope import Draft
from rftd.streams.events import experiment as life
from rftd.streams.events.batch import ExperienceGivenUp, ExperiencePrioritized
from rftd.streams.events.registry import Event
from rftd.streams.events.task import TaskRetried
from rftd.streams.fencing import FenceView, Role
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Spine, Status
from rftd.streams.topics import partition_of
from rftd.workers.control.obstacle import TRIED_AGAIN, of_error

LEGAL: Final[dict[type[Event], tuple[Status, ...]]] = {
    life.ExperimentPaused: (Status.RUNNING,),
    life.ExperimentResumed: (Status.PAUSED,),
    life.ExperimentPrioritized: (Status.SUBMITTED, Status.QUEUED, Status.RUNNING, Status.PAUSED),
    life.ExperimentCancelled: (Status.SUBMITTED, Status.QUEUED, Status.RUNNING, Status.PAUSED),
}


def check_command(state: RunState, event: Event) -> None:
    """Raises ConflictError if the event, which somebody asked for, may not follow what there is."""
    if isinstance(event, TaskRetried):
        check_retry(state, event)
    elif isinstance(event, ExperiencePrioritized):
        check_tag(state, event)
    elif isinstance(event, ExperienceGivenUp):
        check_giving_up(state, event)
    else:
        check_transition(state.spine, event)


def check_tag(state: RunState, event: ExperiencePrioritized) -> None:
    """Raises ConflictError if no experience of the group waits, rests or is still being produced."""
    if event.group in state.groups.open:
        return
    entries = chain(state.replay_buffer.waiting.values(), state.replay_buffer.cooling.values())
    if any(entry.group.group == event.group for entry in entries):
        return
    raise ConflictError(
        f"no experience of group {event.group} waits to be trained (again)",
        fix="rftd experiences ls NAME --state waiting lists those that do",
    )


def check_giving_up(state: RunState, event: ExperienceGivenUp) -> None:
    """Raises ConflictError if nothing comes of it: it was trained, or it is gone already."""
    id = event.experience
    spine = state.spine
    replay_buffer = state.replay_buffer
    if id in replay_buffer.waiting or id in replay_buffer.cooling:
        return
    # Of plans only those that were never executed: an executed batch is history, and its items are the training set
    # of weights that exist.
    plans = [plan.event for step, plan in spine.plans.items() if step > spine.furthest]
    if any(item.experience == id for plan in plans for item in plan.experiences):
        return
    raise ConflictError(
        f"experience {id} does not wait, and no batch holds it that was never executed: it was trained, or is retired",
        fix="restore what is missing; or fork the experiment at a checkpoint after the step that trained it",
    )


def check_transition(spine: Spine, event: Event) -> None:
    """Raises ConflictError if the event may not follow the state.

    A pause for an obstacle becomes one by command, but no command ends it, unless it ends by trying again.
    """
    legal = LEGAL[type(event)]
    status = spine.status
    if spine.cause and isinstance(event, life.ExperimentPaused):
        return
    if spine.cause and spine.cause not in TRIED_AGAIN and isinstance(event, life.ExperimentResumed):
        raise ConflictError(f"it is paused: {spine.cause}: {spine.reason}", fix="put that right; it goes on by itself")
    if status not in legal:
        verb = type(event).__name__.removeprefix("Experiment").lower()
        raise ConflictError(
            f"it is {status}; only {' or '.join(legal)} can be {verb}", fix="see its state with rftd get"
        )


def paused_for(error: BaseException, experiment: UUID, fences: FenceView, writer: Writer, owner: UUID) -> list[Draft]:
    """The pause of an experiment whose run an error ended, under a controller's fence of its own."""
    found = of_error("daemon", error)
    role = Role(experiment, "controller")
    # A fence of its own, although nothing runs: without one, a run of another daemon that still believes to be the
    # controller could resume right after this pause.
    before = fences.epoch(partition_of(topics.EXPERIMENTS, experiment), role)
    fence = life.Fence(role=role.name, epoch=before + 1, previous=before, owner=owner)
    paused = life.ExperimentPaused(reason=f"{found.reason}; fix: {found.fix}", cause=found.cause)
    under = writer.under(role=role.name, epoch=before + 1)
    return [under.draft(event, experiment=experiment) for event in (fence, paused)]
