"""`Intake`: accepts submitted and forked experiments: each gets a folder of its own and a place in the queue."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec

from rftd.daemon.run.operations import Accepted
from rftd.daemon.run.registry import Entry
from rftd.daemon.run.supervisor.benching import Measured, bench_of, checkpoints_to_measure
from rftd.daemon.run.supervisor.continuing import based, continued, earlier, is_bench, stamped
from rftd.daemon.run.supervisor.forking import check_parent, check_payloads, evaluated, forked_spec, lineage_note, moved
from rftd.daemon.run.supervisor.reach import within_reach
from rftd.daemon.run.supervisor.relocation import relocated
from rftd.daemon.trust.asker import Asker
from rftd.daemon.trust.judge import SubmissionJudge
from rftd.ops import faults, limits
from rftd.ops.clock import Clock
from rftd.ops.errors import ConflictError, NotFoundError, ReusedKeyError
from rftd.ops.ids import NAMESPACE, derive
from rftd.storage.files.artifacts import ARTIFACTS
from rftd.storage.files.tokenizer_copies import copied_tokenizers
from rftd.streams.events import experiment as life
from rftd.streams.events.registry import Event
from rftd.streams.folds.spine import Kept, Status
from rftd.streams.log.append_retry import append_when_space
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.log import EventLog
from rftd.streams.log.role import as_refs
from rftd.streams.log.shared_history import shared_history
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.spec.split_submission import BOTH, ROLES, TRAIN, Disagreement, filled, halves_of, has_tasks, joined
from rftd.workers.devices.host import Host

_BATCH_SIZE_FIELDS: Final = (("buffer", "batch_size"),)
"""Fields of the batch size, not copied into a trainer half whose tasks are in the explorer half."""


class WantedFork(msgspec.Struct, frozen=True):
    """A fork as requested by a client, before its checks; see `Operations.fork`."""

    experiment: UUID
    """The experiment sharing its history with the fork."""
    at_step: int
    """Last weight version shared with the parent."""
    overrides: tuple[str, ...]
    """Changes of the parent's configuration, as `key=value`."""
    name: str | None
    """Requested name; None: derived from the parent's name."""
    labels: dict[str, str]
    """Labels of the fork."""


class Intake:
    """Appends accepted submissions, one at a time: callers hold the lock of the folders and bring `experiments` up to
    date.
    """

    def __init__(
        self,
        log: EventLog,
        experiments: Mapping[UUID, Entry],
        writer: Writer,
        tidy: Callable[[], Awaitable[None]],
        refresh: Callable[[], Awaitable[None]],
        *,
        clock: Clock,
        roles: frozenset[str] = ROLES,
    ) -> None:
        """`roles` are the roles of workers started by this daemon. `tidy` completes interrupted archiving and removals;
        `refresh` brings `experiments` up to date.
        """
        self._refresh = refresh
        self._log = log
        self._experiments = experiments
        self._writer = writer
        self._tidy = tidy
        self._clock = clock
        self._roles = roles

    async def check(self, spec: ExperimentSpec, host: Host, judge: SubmissionJudge) -> ExperimentSpec:
        """Returns the specification that `submit` would append under a new key. Raises ConflictError like `submit`."""
        spec = within_reach(spec, self._roles)
        if spec.half != "both" and self._half(spec, None, judge.asker) in self._experiments:
            return spec
        if is_bench(spec) and (measured := await self._measured(spec, judge.asker)):
            benches = [await self._bench(checkpoint, spec) for checkpoint in measured]
            return _naming_all(benches[-1][0], [bench.name for bench, _ in benches])
        # Nothing is tidied: a crash's leftovers in the folder of a removed experiment go with the next submission.
        spec, _ = await self._with_history(spec, host, judge.asker, tidy=False)
        self._check_room()
        return spec

    def filled(self, spec: ExperimentSpec) -> dict[str, Any]:
        """Returns the configuration of an explorer or trainer half, with unset shared fields copied from the half
        submitted before; unchanged for the first half.
        """
        half_experiments = [
            experiment
            for experiment in self._experiments.values()
            if experiment.job_dir == spec.job_dir and experiment.spec.half != "both"
        ]
        living = next((experiment for experiment in half_experiments if not experiment.spine.ended), None)
        if living is None:
            return spec.config
        tasks_elsewhere = spec.half == TRAIN and not has_tasks(spec)
        other_half = relocated(living.spec, living.spine)
        return filled(spec.config, other_half.config, *(_BATCH_SIZE_FIELDS if tasks_elsewhere else ()))

    async def submit(
        self, spec: ExperimentSpec, host: Host, judge: SubmissionJudge, *, key: UUID, id: UUID, base: UUID | None = None
    ) -> Accepted:
        """Submits an experiment: validates the configuration, inspects model and datasets, and appends the event. See
        `Operations.submit`. `spec` has passed the preflight for `host`, and `id` becomes the event's id. A new
        experiment is a fork of `base` at step 0, if its first weights are evaluated there.
        """
        spec = within_reach(spec, self._roles)
        if is_bench(spec) and (measured := await self._measured(spec, judge.asker)):
            return await self._submit_benches(measured, spec, judge, key=key, id=id)
        experiment = self._half(spec, id, judge.asker) if spec.half != "both" else made_by(key)
        registered = self._experiments.get(experiment)
        forked: life.ExperimentForked | None = None
        if registered is None:
            spec, forked = await self._with_history(spec, host, judge.asker)
            if forked is None and base is not None and base in self._experiments:
                spec, forked = await based(self._log, self._experiments[base], spec, host)
            self._check_room()
        elif spec.half == "both":  # the request's decision before a crash: memory and folders may differ now
            spec = registered.spec
        submitted = submitted_by(judge.asker, spec)
        drafts = [self._writer.draft(submitted, experiment=experiment, id=id, correlation=key)]
        if forked is not None:  # in the same append: no reader meets a continuation with an unknown history
            ours = derive(experiment, "fork")
            drafts.append(self._writer.draft(forked, experiment=experiment, id=ours, correlation=key))
        faults.point("submission.before_append")
        position = (await self._log.append(drafts))[0]
        # A crash between the two appends leaves an experiment submitted and never accepted. The same request finds it
        # under the id derived from the key, and accepts it then.
        faults.point("submission.between_appends")
        # A train half leaving the tasks to the other half is accepted together with it: no worker may begin before.
        whole = spec.half != TRAIN or has_tasks(spec) or (registered is not None and has_tasks(registered.spec))
        if whole and (registered is None or registered.status is Status.SUBMITTED):
            earlier_warnings = registered.spec.warnings if registered is not None else ()
            earlier_grants = registered.spine.grants if registered is not None else ()
            grants = tuple(dict.fromkeys((*earlier_grants, *judge.grants)))
            warnings = tuple(dict.fromkeys((*earlier_warnings, *spec.warnings)))
            await self._accept(experiment, spec, warnings, grants)
        if spec.half != "both":
            await self._check_half(experiment, spec)
        return Accepted(experiment=experiment, name=spec.name, event=id, position=position, warnings=spec.warnings)

    async def _measured(self, spec: ExperimentSpec, asker: Asker) -> list[Measured]:
        """Returns the checkpoints to be evaluated by a bench; none for a bench of a model. Raises ConflictError."""
        measured = await checkpoints_to_measure(self._log, self._experiments.values(), spec)
        for checkpoint in measured:
            if checkpoint.parent is not None:
                asker.check_concerned(checkpoint.parent.spine.submitted_by, name=checkpoint.parent.name)
        self._check_room(len(measured))
        return measured

    async def _bench(
        self, measured: Measured, spec: ExperimentSpec
    ) -> tuple[ExperimentSpec, life.ExperimentForked | None]:
        """Returns specification and fork event of one checkpoint's bench experiment, under a free name."""
        name = self._free_name(measured.name(spec.name), Path(spec.job_dir).parent)
        return await bench_of(self._log, measured, spec, name)

    async def _submit_benches(
        self, measured: Sequence[Measured], spec: ExperimentSpec, judge: SubmissionJudge, *, key: UUID, id: UUID
    ) -> Accepted:
        """Submits a bench for each checkpoint, in order, and answers with the last one, submitted under `key`.

        Interrupted and sent again, the request finds the existing ones under keys derived from its own.
        """
        names: list[str] = []
        keys = [*(derive(key, "bench", checkpoint.step) for checkpoint in measured[:-1]), key]
        for checkpoint, bench_key in zip(measured, keys, strict=True):
            experiment = made_by(bench_key)
            registered = self._experiments.get(experiment)
            if registered is None:
                bench, forked = await self._bench(checkpoint, spec)
                # The last one is the daemon's answer, so it names them all.
                bench = _naming_all(bench, [*names, bench.name]) if bench_key == key else bench
            else:
                bench = registered.spec
                forked = registered.spine.forked
            names.append(bench.name)
            event = id if bench_key == key else derive(experiment, "submit")
            drafts = [
                self._writer.draft(
                    submitted_by(judge.asker, bench), experiment=experiment, id=event, correlation=bench_key
                )
            ]
            if forked is not None:
                fork = derive(experiment, "fork")
                drafts.append(self._writer.draft(forked, experiment=experiment, id=fork, correlation=bench_key))
            faults.point("submission.before_append")
            position = (await append_when_space(self._log, drafts, clock=self._clock))[0]
            if registered is None or registered.status is Status.SUBMITTED:
                await self._accept(experiment, bench, bench.warnings, judge.grants)
        return Accepted(experiment=experiment, name=bench.name, event=id, position=position, warnings=bench.warnings)

    def _half(self, spec: ExperimentSpec, event: UUID | None, asker: Asker) -> UUID:
        """Returns the id of the experiment joined by this half: a running one, or a new one; for a repeated request the
        recorded one.

        The id is derived from the folder: two daemons accepting one half each mean the same experiment. Raises
        ConflictError if this half was submitted before, or the folder belongs to another kind of experiment.
        """
        if (
            event
            and (
                recorded := next(
                    (experiment for experiment in self._experiments.values() if experiment.spine.holds(event)), None
                )
            )
            is not None
        ):
            return recorded.id
        # By number as well as by folder: a folder may see several experiments of two halves, one after the other, and
        # each pair needs its own id.
        half_experiments = [
            experiment
            for experiment in self._experiments.values()
            if experiment.job_dir == spec.job_dir and experiment.spec.half != "both"
        ]
        living = next((experiment for experiment in half_experiments if not experiment.spine.ended), None)
        if living is None:
            return derive(NAMESPACE, "halves", spec.job_dir, len(half_experiments))
        # Grants of the first half would serve the second half's submitter, and vice versa.
        asker.check_same(living.spine.submitted_by, name=living.name)
        if halves_of(spec) <= living.spine.halves:
            raise ConflictError(
                f"{living.name} has its {spec.half} half already",
                field="mode",
                fix=f"submit the other half with mode: {' or '.join(sorted(BOTH - halves_of(spec)))}, or cancel it",
            )
        if isinstance(joined_spec := joined(living.spec, spec, trained=living.spine.generation >= 0), Disagreement):
            raise _disagreement(living.name, joined_spec)
        return living.id

    async def _check_half(self, experiment: UUID, spec: ExperimentSpec) -> None:
        """Raises ConflictError if another daemon has meanwhile accepted a different experiment of this name."""
        await self._refresh()
        entry = self._experiments[experiment]
        if not halves_of(spec) <= entry.spine.halves:
            joined_spec = joined(entry.spec, spec, trained=entry.spine.generation >= 0)
            half_difference = Disagreement("half", entry.spec.half, spec.half)
            raise _disagreement(entry.name, joined_spec if isinstance(joined_spec, Disagreement) else half_difference)

    async def fork(self, request: WantedFork, host: Host, judge: SubmissionJudge, *, key: UUID, id: UUID) -> Position:
        """Submits an experiment continuing from weight version `at_step` of another one, with changes. See
        `Operations.fork`. Workers run on `host`; `id` becomes the id of the submission; the position is that of the
        last event. Raises ReusedKeyError for a key of a submission that is no fork.
        """
        child = made_by(key)
        registered = self._experiments.get(child)
        if registered is None or registered.status is Status.SUBMITTED:
            spec, event = await self._forked(request, host, judge)
            spec = await self._with_own_folder(spec) if registered is None else registered.spec
            if registered is None:
                self._check_room()
        elif registered.spine.forked is None:
            raise ReusedKeyError(
                "this request id belongs to another command", field="Idempotency-Key", fix="send a new one"
            )
        else:
            spec = registered.spec
            event = registered.spine.forked
        # One append, with ids derived from the key: repeated after a crash or a time-out, it adds nothing, and no
        # reader meets a fork with an unknown parent.
        drafts = [
            self._writer.draft(submitted_by(judge.asker, spec), experiment=child, id=id, correlation=key),
            self._writer.draft(event, experiment=child, id=derive(child, "fork"), correlation=key),
        ]
        position = (await append_when_space(self._log, drafts, clock=self._clock))[-1]
        if registered is None or registered.status is Status.SUBMITTED:
            await self._accept(child, spec, spec.warnings, judge.grants)
        return position

    async def check_fork(self, request: WantedFork, host: Host, judge: SubmissionJudge) -> ExperimentSpec:
        """Returns the specification that `fork` would append under a new key. Raises as `fork`."""
        spec, _ = await self._forked(request, host, judge)
        spec = await self._with_own_folder(spec, tidy=False)
        self._check_room()
        return spec

    async def _forked(
        self, request: WantedFork, host: Host, judge: SubmissionJudge
    ) -> tuple[ExperimentSpec, life.ExperimentForked]:
        """Returns the fork's spec and shared history. Raises NotFoundError, ConfigError, DataError, ConflictError."""
        experiment = request.experiment
        at_step = request.at_step
        entry = self._experiments.get(experiment)
        if entry is None or entry.spine.spec is None:
            raise NotFoundError(f"no experiment {experiment}", fix="see rftd ls")
        check_parent(entry.name, entry.spine)
        parent = relocated(entry.spine.spec, entry.spine)
        shared = await shared_history(self._log, experiment, at_step)
        if shared.forked.parent != experiment and shared.spine.spec is not None:
            check_parent(shared.spine.spec.name, shared.spine)
        check_payloads(entry.name, shared.spine, at_step)
        name = request.name or self._free_name(f"{entry.name}-fork-{at_step}", Path(parent.job_dir).parent)
        spec = await asyncio.to_thread(
            forked_spec, parent, shared, request.overrides, name=name, labels=request.labels, host=host, judge=judge
        )
        spec = within_reach(spec, self._roles)
        notes = lineage_note(experiment, entry.name, shared)
        spec = msgspec.structs.replace(spec, warnings=(*spec.warnings, *notes))
        return spec, msgspec.structs.replace(shared.forked, evaluated=evaluated(spec, shared))

    def _free_name(self, name: str, folder: Path) -> str:
        """Returns `name`, or `name` with the first number from 2 that no experiment and no entry of `folder` has."""
        used_names = {experiment.name for experiment in self._experiments.values()}
        candidates = chain([name], (f"{name}-{number}" for number in count(2)))
        return next(
            candidate for candidate in candidates if candidate not in used_names and not (folder / candidate).exists()
        )

    async def _accept(
        self, experiment: UUID, spec: ExperimentSpec, warnings: tuple[str, ...], grants: tuple[life.Grant, ...]
    ) -> None:
        """Appends `warnings` and the acceptance of an experiment, with `grants` and the digests of tokenizers copied
        into its folder.
        """
        tokenizers = await asyncio.to_thread(copied_tokenizers, spec)
        # Read before writing the acceptance: readers of the experiment begin at these positions, so none of its records
        # may lie below.
        heads = as_refs(await self._log.heads())
        events: list[Event] = [life.ExperimentWarned(text=text) for text in warnings]
        events.append(life.ExperimentAccepted(start=heads, grants=grants, tokenizers=tokenizers))
        drafts: list[Draft] = [
            self._writer.draft(event, experiment=experiment, id=derive(experiment, "accept", number))
            for number, event in enumerate(events)
        ]
        await append_when_space(self._log, drafts, clock=self._clock)

    async def _with_history(
        self, spec: ExperimentSpec, host: Host, asker: Asker, *, tidy: bool = True
    ) -> tuple[ExperimentSpec, life.ExperimentForked | None]:
        """Returns the specification with its own folder, and the history continued by it, if any.

        With `continue_from_checkpoint`, a folder with an ended experiment is left to that experiment, the owner of its
        files, and the new one gets a folder beside it. Raises ConflictError, ConfigError.
        """
        before = earlier(self._experiments.values(), spec)
        running = next((experiment for experiment in before if experiment.status and not experiment.status.ended), None)
        if running is not None:
            raise ConflictError(
                f"{running.name}, an experiment that has not ended, uses {running.job_dir}",
                field="name",
                fix="cancel it, or choose a name",
            )
        continuable = [experiment for experiment in before if experiment.spine.kept is not Kept.REMOVED]
        if not continuable or not await asyncio.to_thread(_is_used, Path(spec.job_dir)):
            return await self._with_own_folder(spec, tidy=tidy), None
        asker.check_concerned(continuable[-1].spine.submitted_by, name=continuable[-1].name)
        check_parent(continuable[-1].name, continuable[-1].spine)
        name = self._free_name(stamped(spec.name, self._clock.now_ns()), Path(spec.job_dir).parent)
        moved_spec = moved(spec, name, str(Path(spec.job_dir).with_name(name)))
        spec, forked = await continued(self._log, continuable[-1], moved_spec, host)
        return await self._with_own_folder(spec, tidy=tidy), forked

    async def _with_own_folder(self, spec: ExperimentSpec, *, tidy: bool = True) -> ExperimentSpec:
        """Returns the specification with its own job folder. Raises ConflictError if the folder is in use."""
        live = [
            experiment for experiment in self._experiments.values() if experiment.status and not experiment.status.ended
        ]
        if any(experiment.job_dir == spec.job_dir for experiment in live):
            raise ConflictError(
                f"an experiment that has not ended uses {spec.job_dir}", field="name", fix="cancel it, or choose a name"
            )
        # Before looking into the folder: a crash's leftovers of a removed experiment would make it look used.
        if tidy:
            await self._tidy()
        archived = [experiment for experiment in self._experiments.values() if experiment.spine.kept is Kept.ARCHIVED]
        if any(experiment.job_dir == spec.job_dir for experiment in archived):
            raise ConflictError(
                f"the files of an archived experiment belong into {spec.job_dir}",
                field="name",
                fix="choose another name, or remove that experiment with rftd rm",
            )
        used = await asyncio.to_thread(_is_used, Path(spec.job_dir))
        if not used:
            return spec
        # A bench of a model continues nothing, and may be requested again and again.
        if spec.half != "both" or (spec.config.get("continue_from_checkpoint", True) and not is_bench(spec)):
            raise ConflictError(
                f"{spec.job_dir} holds another experiment",
                field="name",
                fix="choose another name"
                + (", or set continue_from_checkpoint: false for a folder with a time stamp" * (spec.half == "both")),
            )
        # Two may be submitted within one second.
        name = self._free_name(stamped(spec.name, self._clock.now_ns()), Path(spec.job_dir).parent)
        return moved(spec, name, str(Path(spec.job_dir).with_name(name)))

    def _check_room(self, new: int = 1) -> None:
        """Raises ConflictError if `new` more experiments would exceed the length of the queue."""
        queued = sum(1 for experiment in self._experiments.values() if experiment.status is Status.QUEUED)
        if queued + new > limits.QUEUED_EXPERIMENTS:
            raise ConflictError(f"{queued} experiments wait already", fix="cancel some of them")


def _naming_all(bench: ExperimentSpec, names: Sequence[str]) -> ExperimentSpec:
    """Returns the last bench of several, with a warning naming them all."""
    if len(names) == 1:
        return bench
    warning = f"mode bench measures {len(names)} checkpoints, each in a separate experiment: {', '.join(names)}"
    return msgspec.structs.replace(bench, warnings=(*bench.warnings, warning))


def submitted_by(asker: Asker, spec: ExperimentSpec) -> life.ExperimentSubmitted:
    """Builds the event of a submission, with the name and role of the asker."""
    return life.ExperimentSubmitted(spec=spec, by=asker.name, role=asker.role.label)


def made_by(key: UUID) -> UUID:
    """Returns the id of the experiment created by a request: derived from its key, so that submission and fork share
    one spine.
    """
    return derive(key, "experiment")


def _disagreement(name: str, difference: Disagreement) -> ConflictError:
    """Returns the error of two halves with different settings of a shared field."""
    first, second = (textwrap.shorten(repr(setting), 100) for setting in (difference.one, difference.other))
    return ConflictError(
        f"{name} was submitted with {difference.field}: {first}, and here it is {second}: they are not two halves of "
        "one experiment",
        field=difference.field,
        fix="write the same value in both files: both halves use it",
    )


def _is_used(folder: Path) -> bool:
    # Copies of tokenizers come with the acceptance, and stay behind if the experiment never starts.
    """True if the folder has files other than copies of tokenizers."""
    return folder.is_dir() and any(path.name != ARTIFACTS for path in folder.iterdir())
