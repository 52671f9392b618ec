"""`Operations` on a bare log, without workers: what the API needs of a daemon, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn
from uuid import UUID

import msgspec

from rftd.daemon.config.loading import check_config
from rftd.daemon.run.dlq.dead_letter_service import DeadLetterService
from rftd.daemon.run.dlq.letter import Dead, DeadLetterReceipt, State
from rftd.daemon.run.operations import (
    Accepted,
    Annotation,
    Done,
    Forked,
    StandingSweep,
    SweepTaken,
    TextOrigin,
    WantedSweep,
)
from rftd.daemon.run.registry import Registry
from rftd.daemon.run.supervisor.sweeping import named_sweep, standing_of
from rftd.daemon.run.why.answer import answer
from rftd.daemon.run.why.life import Line, entry_wait
from rftd.daemon.run.why.wait import Wait, Why
from rftd.daemon.serve.keeping import Keeping
from rftd.daemon.trust.allowances import NOTHING_MORE, Allowances
from rftd.daemon.trust.asker import Asker
from rftd.ops.clock import SystemClock
from rftd.ops.errors import ConflictError, NotFoundError, UsageError
from rftd.ops.ids import SystemIds, derive
from rftd.streams.events import experiment
from rftd.streams.events.batch import ExperienceGivenUp, ExperiencePrioritized
from rftd.streams.events.registry import Event
from rftd.streams.events.sweep import SweepCancelled, SweepSubmitted
from rftd.streams.events.task import TaskRetried, TasksAdded, TasksEnded
from rftd.streams.folds.failed_tasks import FailedTask
from rftd.streams.folds.key_use import KeyUse
from rftd.streams.folds.spine import Spine, Status
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer, decode
from rftd.streams.log.envelope import Position
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import partition_of
from rftd.streams.spec.engines import WorkerMemory
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.control.budgets import Spent
from rftd.workers.devices.host import Device, Host
from rftd.workers.tracking.cursor import Cursor


class LogOperations:
    """Each command is one event, appended if the spine allows it."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.allowances: Allowances = NOTHING_MORE
        self.keeping = Keeping()
        self.log_excess_bytes = 0
        self.looks: list[str] = []
        """The experiments that were looked at."""
        clock = SystemClock()
        self._writer = Writer(source="daemon/test", clock=clock, ids=SystemIds(clock))
        self._dead_letters = DeadLetterService(log, self._writer, clock=clock)

    def for_asker(self, asker: Asker) -> LogOperations:
        """Itself: whoever asks here is the owner."""
        return self

    async def submit(self, config: dict[str, Any], *, request_id: UUID) -> Accepted:
        spec = check_config(config)
        id = derive(request_id, "experiment")
        position = await self._append(experiment.ExperimentSubmitted(spec=spec), id, request_id)
        await self._append(experiment.ExperimentAccepted(start=()), id, derive(request_id, "accepted"))
        return Accepted(experiment=id, name=spec.name, event=request_id, position=position, warnings=spec.warnings)

    async def check(self, config: dict[str, Any]) -> ExperimentSpec:
        return check_config(config)

    async def fork(
        self,
        experiment_id: UUID,
        *,
        at_step: int,
        overrides: Sequence[str],
        name: str | None,
        labels: dict[str, str],
        request_id: UUID,
    ) -> Forked:
        """A fork at the base: what a bare log can tell of."""
        spine = await self._spine(experiment_id)
        if spine.spec is None:
            raise NotFoundError(f"no experiment {experiment_id}")
        if at_step:
            raise ConflictError(f"step {at_step} was not executed", field="at_step")
        named = name or f"{spine.spec.name}-fork-{at_step}"
        spec = check_config({**spine.spec.config, "name": named, "labels": labels}, overrides=overrides)
        id = derive(request_id, "experiment")
        await self._append(experiment.ExperimentSubmitted(spec=spec), id, request_id)
        event = experiment.ExperimentForked(
            parent=experiment_id, at_step=0, checksum="c", stage=0, first_versions=(0,), decided_at_ns=0
        )
        position = await self._append(event, id, derive(id, "fork"))
        return Forked(
            experiment=id,
            name=named,
            event=request_id,
            position=position,
            warnings=(),
            parent=experiment_id,
            at_step=at_step,
        )

    async def sweep(self, wanted: WantedSweep, *, request_id: UUID) -> SweepTaken:
        """A sweep whose runs nobody begins."""
        name = wanted.name or wanted.config["name"]
        points = [msgspec.structs.replace(point, name=f"{name}-{n}") for n, point in enumerate(wanted.points, 1)]
        event = SweepSubmitted(
            name=name,
            config=wanted.config,
            points=tuple(points),
            at_once=wanted.at_once or 1,
            halving=wanted.halving,
        )
        id = derive(request_id, "sweep")
        position = await self._append(event, id, request_id)
        return SweepTaken(await self.sweep_named(str(id)), Done(request_id, position))

    async def sweeps(self) -> list[StandingSweep]:
        registry = await self._registry()
        return [standing_of(registry, sweep) for sweep in registry.sweeps.by_id.values()]

    async def sweep_named(self, wanted: str) -> StandingSweep:
        registry = await self._registry()
        return standing_of(registry, named_sweep(registry, wanted))

    async def cancel_sweep(self, sweep: UUID, *, reason: str, request_id: UUID) -> Done:
        return Done(request_id, await self._append(SweepCancelled(reason=reason), sweep, request_id))

    def rehearsing(self) -> NoReturn:
        raise UsageError("a bare log foresees nothing", field="dry_run")

    async def pause(self, experiment_id: UUID, *, reason: str, request_id: UUID) -> Done:
        allowed = (Status.RUNNING, Status.QUEUED)
        return await self._change(experiment.ExperimentPaused(reason=reason), experiment_id, request_id, allowed)

    async def resume(self, experiment_id: UUID, *, reason: str, request_id: UUID) -> Done:
        allowed = (Status.PAUSED,)
        return await self._change(experiment.ExperimentResumed(reason=reason), experiment_id, request_id, allowed)

    async def cancel(self, experiment_id: UUID, *, reason: str, request_id: UUID) -> Done:
        allowed = (Status.QUEUED, Status.RUNNING, Status.PAUSED)
        return await self._change(experiment.ExperimentCancelled(reason=reason), experiment_id, request_id, allowed)

    async def prioritize(self, experiment_id: UUID, *, priority: int, reason: str, request_id: UUID) -> Done:
        allowed = (Status.QUEUED, Status.RUNNING, Status.PAUSED)
        event = experiment.ExperimentPrioritized(priority=priority, reason=reason)
        return await self._change(event, experiment_id, request_id, allowed)

    async def annotate(self, experiment_id: UUID, annotation: Annotation, *, request_id: UUID) -> Done:
        event = experiment.ExperimentAnnotated(**annotation._asdict())
        return await self._change(event, experiment_id, request_id, tuple(Status))

    async def tag(self, experiment_id: UUID, group: UUID, *, priority: float, reason: str, request_id: UUID) -> Done:
        allowed = (Status.RUNNING, Status.PAUSED)
        event = ExperiencePrioritized(group=group, priority=priority, reason=reason)
        return await self._change(event, experiment_id, request_id, allowed)

    async def give_up(self, experiment_id: UUID, experience: UUID, *, reason: str, request_id: UUID) -> Done:
        allowed = (Status.RUNNING, Status.PAUSED)
        event = ExperienceGivenUp(experience=experience, reason=reason)
        return await self._change(event, experiment_id, request_id, allowed)

    async def add_tasks(self, experiment_id: UUID, tasks: Sequence[str], *, request_id: UUID) -> Done:
        return await self._change(TasksAdded(stage=0, tasks=tuple(tasks)), experiment_id, request_id, (Status.RUNNING,))

    async def end_tasks(self, experiment_id: UUID, *, reason: str, request_id: UUID) -> Done:
        event = TasksEnded(stage=0, reason=reason)
        return await self._change(event, experiment_id, request_id, (Status.RUNNING,))

    async def text_origin(self, experiment: UUID) -> TextOrigin | None:
        return TextOrigin.of(await self._spine(experiment))

    def spine(self, experiment_id: UUID) -> None:
        """Nothing is under way on a bare log."""

    async def why(self, experiment_id: UUID) -> Why:
        registry = await self._registry()
        entry = registry.entries[experiment_id]
        wait = entry_wait(entry, Line(registry.line(), slots=1))
        return answer(entry, [wait], live=True, clock=SystemClock())

    async def waits(self, experiment_id: UUID) -> list[Wait]:
        return (await self.why(experiment_id)).waits

    def under_way(self, experiment_id: UUID) -> None:
        """Nothing is under way on a bare log."""

    def pause_state(self, experiment_id: UUID) -> None:
        """Nothing is paused on a bare log."""

    def memory(self, experiment_id: UUID) -> list[WorkerMemory]:
        return []

    async def trackers(self, experiment_id: UUID) -> dict[str, Cursor]:
        return {}

    def spent(self, experiment_id: UUID) -> Spent | None:
        return None

    def looked(self, wanted: str) -> None:
        self.looks.append(wanted)

    def named(self, wanted: str) -> UUID:
        raise NotFoundError(f"no experiment {wanted!r}")

    def host(self) -> Host:
        return Host(
            devices=(Device(kind="cpu", index=0, name="2 processors", memory_bytes=1 << 30),), no_gpu="none is built in"
        )

    def used_bytes(self, experiment_id: UUID) -> dict[tuple[str, str], int]:
        return {}

    def opening(self, experiment_id: UUID) -> list[Wait]:
        return []

    def stopped(self, experiment_id: UUID) -> None:
        return None

    async def archive(self, experiment_id: UUID, *, to: str, request_id: UUID) -> Done:
        event = experiment.ExperimentArchived(path=to or "/archives/it.rftd", size_bytes=1, sha256="0" * 64)
        return await self._change(event, experiment_id, request_id, (Status.COMPLETED, Status.CANCELLED))

    async def restore(self, experiment_id: UUID, *, source: str, request_id: UUID) -> Done:
        event = experiment.ExperimentRestored(path=source or "/archives/it.rftd")
        return await self._change(event, experiment_id, request_id, (Status.COMPLETED,))

    async def remove(self, experiment_id: UUID, *, reason: str, archive: bool, request_id: UUID) -> Done:
        event = experiment.ExperimentRemoved(reason=reason)
        return await self._change(event, experiment_id, request_id, (Status.COMPLETED, Status.CANCELLED))

    async def queued_by(self) -> dict[str, int]:
        return {}

    async def refusals(self) -> list[Position]:
        registry = await self._registry()
        return registry.requests.newest_refusals()

    async def dead_letters(self, tasks: Sequence[FailedTask]) -> list[Dead]:
        registry = await self._registry()
        return await self._dead_letters.dead(tasks, registry.entries)

    async def retry_dead_letter(self, dead: Dead, *, by: str, reason: str, request_id: UUID) -> DeadLetterReceipt:
        async def give_out(task: FailedTask) -> KeyUse:
            event = derive(task.group, "retried")
            position = await self._give_out(task, by, reason, event)
            return KeyUse(event, "task.retried", task.experiment, 0, position, effective=True)

        return await self._dead_letters.retry(dead, give_out, by=by)

    async def drop_dead_letter(self, dead: Dead, *, by: str, reason: str, request_id: UUID) -> DeadLetterReceipt:
        id = dead.letter.id
        if dead.letter.state is State.DROPPED:
            return DeadLetterReceipt(id=id, state=State.DROPPED, already=True, position=None)
        position = await self._dead_letters.drop(dead, by=by, reason=reason, key=request_id)
        return DeadLetterReceipt(id=id, state=State.DROPPED, already=False, position=str(position))

    async def _give_out(self, task: FailedTask, by: str, reason: str, event: UUID) -> Position:
        """The task is given out as if the stage of every task were still under way."""
        retried = TaskRetried(
            group=task.group,
            retry=derive(task.group, "retry"),
            stage=task.stage,
            sequence=task.sequence,
            row=task.row,
            epoch=task.epoch,
            repeat_times=task.members + task.failed,
            min_version=0,
            by=by,
            reason=reason,
        )
        return await self._append(retried, task.experiment, event)

    async def _change(self, event: Event, id: UUID, request_id: UUID, allowed: tuple[Status, ...]) -> Done:
        known: set[UUID] = set()
        spine = await self._spine(id, known)
        if spine.status is None:
            raise NotFoundError(f"no experiment {id}")
        if request_id not in known and spine.status not in allowed:
            raise ConflictError(f"the experiment is {spine.status.value}", fix="see rftd get")
        return Done(request_id, await self._append(event, id, request_id))

    async def _spine(self, id: UUID, known: set[UUID] | None = None) -> Spine:
        spine = Spine()
        for record in await self._log.read(partition_of(topics.EXPERIMENTS, id), 0):
            decoded = decode(record)
            if decoded.head.experiment == id:
                spine.apply(decoded)
                if known is not None:
                    known.add(decoded.head.id)
        return spine

    async def _registry(self) -> Registry:
        registry = Registry(self._log)
        await registry.catch_up()
        await registry.close()
        return registry

    async def _append(self, event: Event, id: UUID, request_id: UUID) -> Position:
        return (await self._log.append([self._writer.draft(event, experiment=id, id=request_id)]))[0]
