"""`Inbox`: what owners ask of a run under way, and the transitions that its state allows. Whoever asks is answered."""

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
from rftd.workers.control.obstacle import RESUMABLE, of_error

PLACES = 64
"""The most commands that wait at once; a caller beyond that is told to ask again."""


Confirm: TypeAlias = Callable[[], Awaitable[None]]
"""Raises ConflictError if a command may not be carried out any more, whatever the run says to it."""


class Request(NamedTuple):
    """The id and key under which a command is appended; `confirm` is awaited under the lease that the command needs."""

    id: UUID
    key: UUID | None = None
    confirm: Confirm | None = None


class _Asked(NamedTuple):
    """One command, and who waits for its answer."""

    event: Event
    request: Request
    answer: asyncio.Future[Position]
    traceparent: str | None
    """The span of whoever asked; the event is written by a task that has none."""


class Inbox:
    """Commands in the order in which they came; `check` raises ConflictError for one that is illegal now.

    It raises UnreachableError if that cannot be told yet.
    """

    def __init__(self, experiment: UUID, check: Callable[[Event], None]) -> None:
        self._experiment = experiment
        self._check = check
        self._asked: list[_Asked] = []
        self._closed = False

    async def ask(self, event: Event, request: Request) -> Position:
        """The position of the event once it was appended as the controller, and read back.

        A request may wait while another daemon has the run and answers who asks there: so it is confirmed in its turn.

        Raises ConflictError if it is illegal, UnreachableError if the run does not decide, or not any more.
        """
        if self._closed or len(self._asked) >= PLACES:
            # An illegal command is refused for good; a legal one that met a closed inbox may be asked again, so the
            # two answers differ.
            self._check(event)
            raise _elsewhere()
        answer: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked(event, request, answer, current_traceparent()))
        return await answer

    async def obey(self, lease: RoleLease) -> None:
        """Carries out everything that was asked. Raises what the lease raises, after an answer to who waits."""
        while self._asked:
            # Taken out before the first await: `close` answers what is still in the list, so nothing is answered
            # twice.
            asked = self._asked.pop(0)
            if asked.answer.done():  # whoever asked has gone
                continue
            try:
                id, key, confirm = asked.request
                if confirm is not None:
                    # Asked in its turn, not when it came: meanwhile another daemon may have had the run and carried
                    # out the same key.
                    await confirm()
                self._check(asked.event)
                draft = lease.writer.draft(
                    asked.event,
                    experiment=self._experiment,
                    id=id,
                    correlation=key,
                    traceparent=asked.traceparent,
                )
                position = (await lease.append([draft]))[0]
            except ConflictError as error:
                _refuse(asked, error)
            # A fence and a cancellation too: an HTTP request whose future is never set would hang until its client
            # gives up.
            except BaseException:
                _refuse(asked, _elsewhere())
                raise
            else:
                if not asked.answer.done():
                    asked.answer.set_result(position)

    def close(self) -> None:
        """Refuses what was asked and what will be; idempotent."""
        self._closed = True
        asked = self._asked
        self._asked = []
        for each in asked:
            try:
                self._check(each.event)
            except (ConflictError, UnreachableError) as error:
                _refuse(each, error)
            else:
                _refuse(each, _elsewhere())


def _refuse(asked: _Asked, error: Exception) -> None:
    if not asked.answer.done():
        asked.answer.set_exception(error)


def _elsewhere() -> UnreachableError:
    return UnreachableError("the run is being taken up anew", fix="ask again in a moment")


LEGAL: Final[dict[type[Event], tuple[Status, ...]]] = {
    life.ExperimentPaused: (Status.RUNNING,),
    life.ExperimentResumed: (Status.PAUSED,),
    life.ExperimentPrioritized: (Status.SUBMITTED, Status.QUEUED, Status.RUNNING, Status.PAUSED),
    life.ExperimentCancelled: (Status.SUBMITTED, Status.QUEUED, Status.RUNNING, Status.PAUSED),
}


def check_command(state: RunState, event: Event) -> None:
    """Raises ConflictError if the event, which somebody asked for, may not follow what there is.

    Raises UnreachableError while the run has not read its own beginning, as when the log is away: nobody knows yet.
    """
    if state.spine.spec is None:
        raise _elsewhere()
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
    if spine.cause and spine.cause not in RESUMABLE and isinstance(event, life.ExperimentResumed):
        raise ConflictError(f"it is paused: {spine.cause}: {spine.reason}", fix="put that right; it goes on by itself")
    if status not in legal:
        verb = type(event).__name__.removeprefix("Experiment").lower()
        raise ConflictError(
            f"it is {status}; only {' or '.join(legal)} can be {verb}", fix="see its state with rftd get"
        )


def requeued(event: Event) -> Event:
    """The command as it is recorded where no run obeys it: a resumed experiment waits for its turn.

    Whether it was released does not matter: another daemon of the log may be about to say so, and one that still has
    the run starts it at once.
    """
    if isinstance(event, life.ExperimentResumed):
        return msgspec.structs.replace(event, queued=True)
    return event


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
