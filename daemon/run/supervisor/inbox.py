"""`Inbox`: commands to a running experiment, and the transitions legal in each state; every caller gets an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from rftd.daemon.run.dlq.verdicts import check_retry
from rftd.daemon.run.supervisor.queueing import check_queue
from rftd.ops.errors import ConflictError, UnreachableError
from rftd.ops.tracing.tracer import current_traceparent
from rftd.streams.events import experiment as life
from rftd.streams.events.batch import ExperienceGivenUp, ExperiencePrioritized
from rftd.streams.events.registry import Event
from rftd.streams.events.task import TaskRetried, TasksAdded, TasksEnded
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Spine, Status
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.fencing import FenceView, Role
from rftd.streams.log.role import RoleLease
from rftd.streams.log.topics import partition_of
from rftd.workers.control.hold import RESUMABLE, obstacle_of_error

PLACES = 64
"""Maximum number of waiting commands; further callers get an error worth a retry."""


Confirm: TypeAlias = Callable[[], Awaitable[None]]
"""A function raising ConflictError if a command must not be recorded any more (for example because its key
was reused).
"""


class Request(NamedTuple):
    """Event id and request key of a command; `confirm` is awaited just before the append, under the
    controller's lease.
    """

    id: UUID
    """Id of the event to be appended."""
    key: UUID | None = None
    """Key of the client's request; None: the command has no request."""
    confirm: Confirm | None = None
    """Last check before the append; None: no check."""


class _PendingCommand(NamedTuple):
    """A command waiting for its append, with the future of its position."""

    event: Event
    """Event recording the command."""
    request: Request
    """Id and key of the event."""
    answer: asyncio.Future[Position]
    """Future with the position of the appended event, or with the error of the command."""
    traceparent: str | None
    """Span of the caller; the event is written by a task without one."""


class Inbox:
    """Commands waiting for a run, carried out in order of arrival.

    `check` raises ConflictError for a command illegal in the present state, UnreachableError if the state is not known
    yet.
    """

    def __init__(self, experiment: UUID, check: Callable[[Event], None]) -> None:
        """`check` raises ConflictError for an event that is illegal in the experiment's present state."""
        self._experiment = experiment
        self._check = check
        self._pending: list[_PendingCommand] = []
        """Commands waiting for their append, in order of arrival."""
        self._closed = False
        """True once the run takes no more commands."""

    async def ask(self, event: Event, request: Request) -> Position:
        """Waits until the run has appended the command, and returns its position.

        Another daemon may take the run over and execute the same request meanwhile, so the request is confirmed when
        its turn comes. Raises ConflictError if the command is illegal, UnreachableError if the run has no state yet or
        has ended.
        """
        if self._closed or len(self._pending) >= PLACES:
            # An illegal command is refused for good; a legal one meeting a closed inbox may be repeated, so the two
            # answers differ.
            self._check(event)
            raise _restarting_error()
        answer: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._pending.append(_PendingCommand(event, request, answer, current_traceparent()))
        return await answer

    async def obey(self, lease: RoleLease) -> None:
        """Appends all waiting commands under the controller's lease. Raises the lease's errors, after answering the
        callers.
        """
        while self._pending:
            # Removed before the first await: `close` answers everything still in the list, so no command is answered
            # twice.
            command = self._pending.pop(0)
            if command.answer.done():  # the caller has gone
                continue
            try:
                id, key, confirm = command.request
                if confirm is not None:
                    # Confirmed in its turn, not on arrival: meanwhile another daemon may have had the run and carried
                    # out the same key.
                    await confirm()
                self._check(command.event)
                draft = lease.writer.draft(
                    command.event,
                    experiment=self._experiment,
                    id=id,
                    correlation=key,
                    traceparent=command.traceparent,
                )
                position = (await lease.append([draft]))[0]
            except ConflictError as error:
                _answer_with_error(command, error)
            # Fences and cancellations too: an HTTP request with a future that is never set would hang until its client
            # gives up.
            except BaseException:
                _answer_with_error(command, _restarting_error())
                raise
            else:
                if not command.answer.done():
                    command.answer.set_result(position)

    def close(self) -> None:
        """Refuses all waiting and future commands: an illegal one with `check`'s error, others with an error worth a
        retry. Idempotent.
        """
        self._closed = True
        pending = self._pending
        self._pending = []
        for command in pending:
            try:
                self._check(command.event)
            except (ConflictError, UnreachableError) as error:
                _answer_with_error(command, error)
            else:
                _answer_with_error(command, _restarting_error())


def _answer_with_error(command: _PendingCommand, error: Exception) -> None:
    """Answers a waiting caller with this error; a caller no longer waiting is skipped."""
    if not command.answer.done():
        command.answer.set_exception(error)


def _restarting_error() -> UnreachableError:
    """Returns the error, worth a retry, of a command to a run that is restarting."""
    return UnreachableError("the run is being restarted", fix="ask again in a moment")


LEGAL: Final[dict[type[Event], tuple[Status, ...]]] = {
    life.ExperimentPaused: (Status.RUNNING,),
    life.ExperimentResumed: (Status.PAUSED,),
    life.ExperimentPrioritized: (Status.SUBMITTED, Status.QUEUED, Status.RUNNING, Status.PAUSED),
    life.ExperimentCancelled: (Status.SUBMITTED, Status.QUEUED, Status.RUNNING, Status.PAUSED),
    # Notes are about history, too.
    life.ExperimentAnnotated: tuple(Status),
}
"""States of the experiment in which each event may be requested."""


def check_command(state: RunState, event: Event) -> None:
    """Raises ConflictError if a requested event may not follow the present state.

    Raises UnreachableError while the run has not read its own beginning, for example while the log is away: the answer
    is unknown.
    """
    if state.spine.spec is None:
        raise _restarting_error()
    if isinstance(event, TaskRetried):
        check_retry(state, event)
    elif isinstance(event, ExperiencePrioritized):
        check_tag(state, event)
    elif isinstance(event, ExperienceGivenUp):
        check_giving_up(state, event)
    elif isinstance(event, TasksAdded | TasksEnded):
        check_queue(state, event)
    else:
        check_transition(state.spine, event)


def check_tag(state: RunState, event: ExperiencePrioritized) -> None:
    """Raises ConflictError unless an experience of the group waits, is in its cooldown or is still being produced."""
    if event.group in state.groups.open:
        return
    experiences = chain(state.replay_buffer.waiting.values(), state.replay_buffer.cooling.values())
    if any(experience.group.group == event.group for experience in experiences):
        return
    raise ConflictError(
        f"no experience of group {event.group} waits to be trained (again)",
        fix="rftd experiences ls NAME --state waiting lists those that do",
    )


def check_giving_up(state: RunState, event: ExperienceGivenUp) -> None:
    """Raises ConflictError if giving up has no effect: the experience was trained, or is retired already."""
    id = event.experience
    spine = state.spine
    replay_buffer = state.replay_buffer
    if id in replay_buffer.waiting or id in replay_buffer.cooling:
        return
    # Only never-executed plans: an executed batch is history, and its experiences are the training set of existing
    # weights.
    plans = [plan.event for step, plan in spine.plans.items() if step > spine.furthest]
    if any(planned_experience.experience == id for plan in plans for planned_experience in plan.experiences):
        return
    raise ConflictError(
        f"experience {id} does not wait, and no batch holds it that was never executed: it was trained, or is retired",
        fix="restore the missing file, or fork the experiment at a checkpoint after the step that trained it",
    )


def check_transition(spine: Spine, event: Event) -> None:
    """Raises ConflictError if the event is illegal in the experiment's state, such as a resume of a running one.

    A pause command during an automatic pause (for an obstacle) replaces that pause. A resume command ends an automatic
    pause for a cause in `RESUMABLE`; one for another cause ends by itself, once the obstacle is gone.
    """
    legal = LEGAL[type(event)]
    status = spine.status
    if spine.cause and isinstance(event, life.ExperimentPaused):
        return
    if spine.cause and spine.cause not in RESUMABLE and isinstance(event, life.ExperimentResumed):
        raise ConflictError(f"it is paused: {spine.cause}: {spine.reason}", fix="fix that; it continues automatically")
    if status not in legal:
        verb = type(event).__name__.removeprefix("Experiment").lower()
        raise ConflictError(
            f"it is {status}; only {' or '.join(legal)} can be {verb}", fix="see its state with rftd get"
        )


def requeued(event: Event) -> Event:
    """Returns the resume command as appended for an experiment without a run: the experiment waits in the queue.

    This is correct even if another daemon is about to release the experiment, or still runs it and continues at once.
    """
    if isinstance(event, life.ExperimentResumed):
        return msgspec.structs.replace(event, queued=True)
    return event


def paused_for(error: BaseException, experiment: UUID, fences: FenceView, writer: Writer, owner: UUID) -> list[Draft]:
    """Returns the records pausing an experiment whose run ended with `error`: a controller's fence, then the pause."""
    trouble = obstacle_of_error("daemon", error)
    role = Role(experiment, "controller")
    # A separate fence, although nothing runs: otherwise a run of another daemon still believing to be the controller
    # could resume right after this pause.
    before = fences.epoch(partition_of(topics.EXPERIMENTS, experiment), role)
    fence = life.Fence(role=role.name, epoch=before + 1, previous=before, owner=owner)
    paused = life.ExperimentPaused(reason=f"{trouble.reason}; fix: {trouble.fix}", cause=trouble.cause)
    under = writer.under(role=role.name, epoch=before + 1)
    return [under.draft(event, experiment=experiment) for event in (fence, paused)]
