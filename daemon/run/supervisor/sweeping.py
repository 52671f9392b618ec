"""`SweepDriver`: accepts sweeps and submits their runs, each once, even after a crash in between."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, Literal, Protocol
from uuid import UUID

import msgspec

from rftd.daemon.run.operations import Done, StandingRun, StandingSweep, SweepTaken, WantedSweep
from rftd.daemon.run.registry import Entry, Registry
from rftd.daemon.run.supervisor.intake import made_by
from rftd.daemon.run.supervisor.orders import Orders, order_of
from rftd.daemon.run.supervisor.submissions import Submissions
from rftd.daemon.serve.reconnecting import UNREACHABLE_ERRORS
from rftd.daemon.trust.asker import AccessRole, Asker
from rftd.daemon.trust.quota import QuotaError
from rftd.ops import limits
from rftd.ops.cancelling import end_if_cancelled
from rftd.ops.clock import Clock
from rftd.ops.errors import (
    CodecError,
    ConflictError,
    DiskFullError,
    LogFullError,
    NotFoundError,
    RftdError,
    UsageError,
    explain,
)
from rftd.ops.ids import derive
from rftd.ops.logs import Logger
from rftd.streams.events.registry import Event
from rftd.streams.events.sweep import Halving, SweepCancelled, SweepHalved, SweepPoint, SweepRefused, SweepSubmitted
from rftd.streams.folds.spine import Status
from rftd.streams.folds.sweeps import RecordedSweep, config_of
from rftd.streams.log.append_retry import append_when_space
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Position
from rftd.streams.log.log import EventLog
from rftd.streams.spec.naming import Named, choose
from rftd.streams.spec.schedule import eval_due, eval_steps
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.control.sweep_runs import (
    BeginRun,
    EndRun,
    HoldRun,
    ResumeRun,
    RunStanding,
    SweepStep,
    is_over,
    next_steps,
)
from rftd.workers.learning.algorithms.registry import lookup

POLL_INTERVAL_S: Final = 0.5
"""Seconds between two passes over the sweeps."""
_RETRIED_ERRORS: Final = (*UNREACHABLE_ERRORS, QuotaError, LogFullError, DiskFullError)
"""Temporary errors: the run is submitted in a later pass."""


class RunCommands(Protocol):
    """The commands on experiments needed here, with the owner's rights; see `Operations`."""

    def pause(self, experiment: UUID, *, reason: str, request_id: UUID) -> Awaitable[Done]:
        """Pauses a running experiment. See `Operations.pause`."""
        ...

    def resume(self, experiment: UUID, *, reason: str, request_id: UUID) -> Awaitable[Done]:
        """Resumes a paused experiment. See `Operations.resume`."""
        ...

    def cancel(self, experiment: UUID, *, reason: str, request_id: UUID) -> Awaitable[Done]:
        """Ends an unended experiment for good. See `Operations.cancel`."""
        ...


class SweepDriver:
    """Submits, halves and ends the runs of all sweeps; `run` works as long as this daemon decides."""

    def __init__(
        self,
        log: EventLog,
        registry: Registry,
        orders: Orders,
        submissions: Submissions,
        writer: Writer,
        refresh: Callable[[], Awaitable[None]],
        commands: RunCommands,
        begun: Callable[[], None],
        folders: asyncio.Lock,
        *,
        slots: int,
        clock: Clock,
        logger: Logger,
    ) -> None:
        """`refresh` brings the registry up to date; `begun` is called after each submitted run.

        `folders` is locked while a job's folder is claimed; `slots` is the default limit of a sweep's concurrent runs.
        """
        self._log = log
        self._registry = registry
        self._orders = orders
        self._submissions = submissions
        self._writer = writer
        self._refresh = refresh
        self._commands = commands
        self._run_queued = begun
        """Function called after each submitted run, to look at the queue."""
        self._folders = folders
        self._slots = slots
        self._clock = clock
        self._logger = logger
        self._over: set[UUID] = set()
        """Sweeps with nothing left to do."""

    async def submit(self, request: WantedSweep, key: UUID, *, asker: Asker) -> SweepTaken:
        """Submits a sweep: every run is checked as by `submit`, and none begins if one is refused. See
        `Operations.sweep`.
        """

        async def write(id: UUID) -> Position:
            event = await self.checked(request, asker)
            return await self._append(event, derive(key, "sweep"), id, key)

        use = await self._orders.carry_out(order_of(key, "sweep", None, request), write)
        assert use.experiment is not None
        sweep = self._registry.sweeps.by_id[use.experiment]
        return SweepTaken(self._standing(sweep), Done(use.event, use.position))

    async def cancel(self, sweep: UUID, reason: str, key: UUID, *, asker: Asker) -> Done:
        """Cancels a sweep and its runs before their end. See `Operations.cancel_sweep`."""
        await self._refresh()
        recorded = named_sweep(self._registry, str(sweep))
        asker.check_concerned(recorded.submitted.by, name=f"sweep {recorded.name}")

        async def write(id: UUID) -> Position:
            self._unfinished(recorded)
            return await self._append(SweepCancelled(reason=reason, by=asker.name), recorded.id, id, key)

        use = await self._orders.carry_out(order_of(key, "cancel sweep", recorded.id, reason), write)
        return Done(use.event, use.position)

    async def unfinished(self, sweep: UUID, asker: Asker) -> StandingSweep:
        """Returns a sweep that `cancel` would end. Raises as `cancel`."""
        await self._refresh()
        recorded = named_sweep(self._registry, str(sweep))
        asker.check_concerned(recorded.submitted.by, name=f"sweep {recorded.name}")
        return self._unfinished(recorded)

    def _unfinished(self, recorded: RecordedSweep) -> StandingSweep:
        """Returns the sweep with its runs. Raises ConflictError if it is over."""
        standing = self._standing(recorded)
        if standing.over:
            raise ConflictError(f"sweep {recorded.name} is over", fix="see rftd sweeps show")
        return standing

    async def named(self, name_or_id: str) -> StandingSweep:
        """Returns the sweep with this name or id. See `Operations.sweep_named`."""
        await self._refresh()
        return self._standing(named_sweep(self._registry, name_or_id))

    async def standing(self) -> list[StandingSweep]:
        """Returns every sweep with the present status of its runs, in the order of the log."""
        await self._refresh()
        return [self._standing(sweep) for sweep in self._registry.sweeps.by_id.values()]

    async def run(self) -> None:
        """Submits due runs, stops losing ones and ends finished sweeps, twice a second, until cancelled."""
        while True:
            await self._refresh()
            for sweep in list(self._registry.sweeps.by_id.values()):
                if sweep.id not in self._over:
                    await self._advance(sweep)
            await self._clock.sleep(POLL_INTERVAL_S)

    async def _advance(self, sweep: RecordedSweep) -> None:
        """Carries out the steps due in one sweep; a temporary error leaves them to the next pass."""
        runs = runs_of(self._registry, sweep)
        if is_over(sweep, runs):
            self._over.add(sweep.id)
            return
        for step in list(next_steps(sweep, runs)):
            try:
                await self._carry_out_step(sweep, step)
            except _RETRIED_ERRORS as error:
                end_if_cancelled()
                self._logger.warning("sweep.waits", sweep=sweep.name, code=error.code, reason=error.what)
                return

    async def _carry_out_step(self, sweep: RecordedSweep, step: SweepStep) -> None:
        """Carries out one step: begins, pauses, resumes or ends a run, or records a halving."""
        match step:
            case BeginRun():
                await self._begin(sweep, step)
            case SweepHalved():
                await self._append(step, sweep.id, derive(sweep.id, "halved", step.version), None)
                await self._refresh()
            case HoldRun():
                await self._order(sweep, step.point, "pause", sweep.hold_reason(step.version), step.version)
            case ResumeRun():
                reason = f"sweep {sweep.name} was halved at version {step.version}"
                await self._order(sweep, step.point, "resume", reason, step.version)
            case EndRun():
                await self._order(sweep, step.point, "cancel", step.reason)

    async def _begin(self, sweep: RecordedSweep, step: BeginRun) -> None:
        """Submits a run, in the name of the sweep's submitter; a refused run is left out, on record."""
        queued = sum(entry.status is Status.QUEUED for entry in self._registry.entries.values())
        if queued >= limits.QUEUED_EXPERIMENTS:
            return
        submitted = sweep.submitted
        key = sweep.key(step.point)
        try:
            asker = Asker(submitted.by, AccessRole[submitted.role.upper()])
            base = None if step.base is None else made_by(sweep.key(step.base))
            await self._submissions.submit(sweep.config(step.point), key, asker=asker, base=base)
        except _RETRIED_ERRORS:
            raise
        except Exception as error:  # one failing run does not stop the others
            end_if_cancelled()
            code = error.code if isinstance(error, RftdError) else "RFTD-BUG"
            self._logger.warning("sweep.refused", sweep=sweep.name, run=step.point, code=code, reason=explain(error))
            refused = SweepRefused(point=step.point, code=code, reason=explain(error))
            await self._append(refused, sweep.id, derive(key, "refused"), None)
            await self._refresh()
        else:
            self._run_queued()

    async def _order(
        self, sweep: RecordedSweep, point: int, verb: Literal["pause", "resume", "cancel"], reason: str, *occasion: int
    ) -> None:
        """Executes a command on a run once per `occasion`, so that a person's later command is not undone."""
        key = sweep.key(point)
        give = {"pause": self._commands.pause, "resume": self._commands.resume, "cancel": self._commands.cancel}[verb]
        try:
            await give(made_by(key), reason=reason, request_id=derive(key, verb, *occasion))
        except ConflictError as error:  # it has just ended by itself, or a person was faster
            self._logger.info("sweep.run_changed", sweep=sweep.name, run=point, verb=verb, reason=error.what)

    async def _append(self, event: Event, sweep: UUID, id: UUID, key: UUID | None) -> Position:
        """Appends an event of a sweep. Raises UsageError for a sweep too large for one event."""
        try:
            draft = self._writer.draft(event, experiment=sweep, id=id, correlation=key)
        except CodecError as error:
            fix = "sweep fewer fields or values"
            raise UsageError(f"the sweep is too large for one event: {error.what}", field="points", fix=fix) from None
        return (await append_when_space(self._log, [draft], clock=self._clock))[0]

    def _standing(self, sweep: RecordedSweep) -> StandingSweep:
        """Returns the sweep with the present status of its runs."""
        return standing_of(self._registry, sweep)

    async def checked(self, request: WantedSweep, asker: Asker) -> SweepSubmitted:
        """Returns the sweep with names for its runs, each checked as a submission. Raises as a submission."""
        at_once = min(request.at_once or self._slots, len(request.points))
        hourly = asker.quota.submissions_per_hour
        if hourly is not None and len(request.points) > hourly:
            fix = "sweep fewer values, or ask the daemon's owner for larger limits of the token"
            raise QuotaError(f"{asker.name!r} may submit {hourly} experiments an hour", field="points", fix=fix)
        most = asker.quota.queued
        if most is not None and at_once > most:
            fix = f"run at most {most} at once: --at-once {most}"
            raise QuotaError(f"{asker.name!r} may have {most} experiments in the queue", field="at_once", fix=fix)
        try:
            for run in request.points:
                config_of(request.config, run)
        except (KeyError, IndexError, TypeError, AssertionError) as error:
            fix = "give paths of keys and indices that lead to fields of config"
            raise UsageError(f"a change leads nowhere: {error!r}", field="points", fix=fix) from None
        named = request.config if request.name is None else {**request.config, "name": request.name}
        first = await self._submissions.spec_of(named, asker=asker)
        event = SweepSubmitted(
            name=first.name,
            config=request.config,
            points=request.points,
            at_once=at_once,
            halving=_checked_halving(request.halving, first),
            by=asker.name,
            role=asker.role.label,
        )
        event = await self._with_free_names(event, first, is_requested=request.name is not None)
        sweep = RecordedSweep(id=UUID(int=0), submitted=event, submitted_ns=0)
        specs = [await self._check(sweep, point, asker) for point in _one_per_file(event.points)]
        bases = [_base_of(spec) for spec in specs]
        one_base = len(event.points) > 1 and bases[0] is not None and all(base == bases[0] for base in bases)
        one_base = one_base and (not _is_seeded(first.stages[0]) or len({point.seed for point in event.points}) == 1)
        return msgspec.structs.replace(event, one_base=one_base)

    async def _with_free_names(
        self, event: SweepSubmitted, spec: ExperimentSpec, *, is_requested: bool
    ) -> SweepSubmitted:
        """Returns the sweep and its runs under free names. Raises ConflictError if a requested name is not free."""
        async with self._folders:
            await self._refresh()
            used_names = {experiment.name for experiment in self._registry.entries.values()}
            sweeps = {sweep.name for sweep in self._registry.sweeps.by_id.values()}
        home = Path(spec.job_dir).parent
        for name in chain([spec.name], (f"{spec.name}-{number}" for number in count(2))):
            runs = _run_names(name, len(event.points))
            free = name not in sweeps and not any(run in used_names or (home / run).exists() for run in runs)
            if free:
                break
            if is_requested:
                raise ConflictError(
                    f"a sweep or a run named {name} exists already", field="name", fix="choose another name"
                )
        points = (msgspec.structs.replace(point, name=run) for point, run in zip(event.points, runs, strict=True))
        return msgspec.structs.replace(event, name=name, points=tuple(points))

    async def _check(self, sweep: RecordedSweep, point: int, asker: Asker) -> ExperimentSpec:
        """Checks one run of a sweep as a submission, and returns its specification. Errors name the run; raises
        UsageError for a half.
        """
        run = sweep.points[point]
        try:
            spec = await self._submissions.check(sweep.config(point), asker=asker)
        except RftdError as error:
            settings = ", ".join(f"{field}={setting}" for field, setting in run.settings.items())
            for leaf in getattr(error, "errors", ()) or (error,):
                run_label = f"run {point + 1} of the sweep" + (f" ({settings})" if settings else "")
                leaf.where = f"{run_label}, {leaf.where}" if leaf.where else run_label
            raise
        if spec.half != "both":
            raise UsageError(
                "half of an experiment cannot be a run of a sweep",
                field="mode",
                fix="sweep a file of mode both or bench",
            )
        return spec


def named_sweep(registry: Registry, name_or_id: str) -> RecordedSweep:
    """Returns the sweep with this name, NAME@2, or id. Raises NotFoundError, UsageError."""
    sweeps = registry.sweeps.by_id
    try:
        return sweeps[choose([Named(sweep.id, sweep.name, False) for sweep in sweeps.values()], name_or_id)]
    except NotFoundError:
        raise NotFoundError(f"no sweep {name_or_id!r}", fix="see rftd sweeps ls") from None


def runs_of(registry: Registry, sweep: RecordedSweep) -> dict[int, RunStanding]:
    """Returns the submitted runs of the sweep, by the index of their point, from 0."""
    halving = sweep.submitted.halving
    versions = () if halving is None else halving.at
    holds = {sweep.hold_reason(version) for version in versions}
    runs: dict[int, RunStanding] = {}
    for point in range(len(sweep.points)):
        entry = registry.entries.get(made_by(sweep.key(point)))
        if entry is not None and entry.status is not None:
            scores = {} if halving is None else entry.scores.get(halving.taskset, {})
            is_held = entry.status is Status.PAUSED and entry.spine.reason in holds
            runs[point] = RunStanding(entry.status, is_held, scores, _is_based(entry))
    return runs


def standing_of(registry: Registry, sweep: RecordedSweep) -> StandingSweep:
    """Returns the sweep with the present status of its submitted runs; `over` is True once no further run can start."""
    runs = runs_of(registry, sweep)
    shown = [StandingRun(point, made_by(sweep.key(point)), run.status) for point, run in runs.items()]
    return StandingSweep(sweep, tuple(shown), is_over(sweep, runs))


def _checked_halving(halving: Halving | None, spec: ExperimentSpec) -> Halving | None:
    """Returns the halving rule with its taskset filled in; None for a sweep without halving. Raises UsageError if no
    evaluation falls on its weight versions.
    """
    if halving is None:
        return None
    names = list(dict.fromkeys(taskset.name for stage in spec.stages for taskset in stage.evals))
    if not names:
        fix = "write explorer_input.eval_tasksets, or leave the halving out"
        raise UsageError("nothing is evaluated, so no score could decide", field="halving", fix=fix)
    taskset = halving.taskset or names[0]
    if taskset not in names:
        near = difflib.get_close_matches(taskset, names, n=1) or names
        raise UsageError(f"no held-out taskset {taskset!r}", field="halving.taskset", fix=f"use {', '.join(near)}")
    if list(halving.at) != sorted(set(halving.at)):
        raise UsageError("its versions do not rise", field="halving.at", fix="give each once, the first first")
    evaluated = _evaluated(spec, taskset)
    for version in halving.at:
        if version not in evaluated:
            fix = f"halve at an evaluation before the end: {', '.join(map(str, evaluated[:8])) or 'there is none'}"
            raise UsageError(f"{taskset} is not evaluated at version {version}", field="halving.at", fix=fix)
    return msgspec.structs.replace(halving, taskset=taskset)


def _evaluated(spec: ExperimentSpec, taskset: str) -> list[int]:
    """Returns the weight versions, except the last, with an evaluation of this held-out taskset."""
    versions: list[int] = []
    first = 0
    for stage in spec.stages:
        if any(held_out.name == taskset for held_out in stage.evals):
            versions += [first + step for step in eval_steps(stage) if step]
        first += stage.total_steps
    return sorted(set(versions) - {first})


def _base_of(spec: ExperimentSpec) -> tuple[Any, ...] | None:
    """Returns the settings on which the first weights and their evaluation depend; None if each run must evaluate them
    itself.
    """
    stage = spec.stages[0]
    if stage.kind != "both" or stage.serving is not None or not (stage.evals and eval_due(stage, 0)):
        return None
    # A deterministic run repeats itself whole, and decisions by evaluation look at the base as well.
    if spec.deterministic or stage.trainer.by_evaluation.figures:
        return None
    rollout = stage.rollout
    return stage.model, stage.trainer.engine, stage.evals, rollout.engine, rollout.dtype, rollout.engine_args


def _is_seeded(stage: StageSpec) -> bool:
    """True if the first weights may depend on the seed: with an adapter, a critic or an engine outside this project."""
    critic = lookup(stage.algorithm.kind).needs.critic
    return stage.trainer.engine not in ("torch", "verl") or stage.model.lora is not None or critic


def _is_based(entry: Entry) -> bool:
    """True if every held-out taskset of the first stage is scored with the weights before the first step."""
    tasksets = entry.spec.stages[0].evals
    return bool(tasksets) and all(0 in entry.scores.get(taskset.name, {}) for taskset in tasksets)


def _run_names(name: str, runs: int) -> list[str]:
    """Returns the numbered names of a sweep's runs, with leading zeros."""
    digits = len(str(runs))
    return [f"{name}-{number:0{digits}}" for number in range(1, runs + 1)]


def _one_per_file(points: Sequence[SweepPoint]) -> Iterator[int]:
    """Yields the first run of each file: runs differing only in their seed are checked once."""
    checked_files: set[bytes] = set()
    for number, point in enumerate(points):
        unlike = [change for change in point.changes if change.field != ("seed",)]
        file = msgspec.json.encode(unlike)
        if file not in checked_files:
            checked_files.add(file)
            yield number
