"""`Intake`: accepts submissions and forks: each gets a folder of its own and waits for its turn."""

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
from rftd.streams.events import experiment as life
from rftd.streams.events.registry import Event
from rftd.streams.folds.spine import Kept, Status
from rftd.streams.log.append_retry import append_when_space
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.log import EventLog
from rftd.streams.log.role import as_refs
from rftd.streams.log.shared_history import shared_history
from rftd.streams.spec.shared_fields import filled
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.spec.split_submission import BOTH, ROLES, TRAIN, Disagreement, halves_of, has_tasks, joined
from rftd.workers.devices.host import Host

_OF_BATCH: Final = (("buffer", "batch_size"),)
"""A train batch that no file gives follows from it."""


class WantedFork(msgspec.Struct, frozen=True):
    """A fork as it was asked for; see `Operations.fork`."""

    experiment: UUID
    """The experiment whose history the fork shares."""
    at_step: int
    overrides: tuple[str, ...]
    name: str | None
    labels: dict[str, str]


class Intake:
    """One at a time: the caller holds the lock of the folders and has brought `entries` up to date."""

    def __init__(
        self,
        log: EventLog,
        entries: Mapping[UUID, Entry],
        writer: Writer,
        tidy: Callable[[], Awaitable[None]],
        refresh: Callable[[], Awaitable[None]],
        *,
        clock: Clock,
        roles: frozenset[str] = ROLES,
    ) -> None:
        """Workers of the `roles` are started here.

        `tidy` ends what was cut off while files were put away, `refresh` brings the entries up to date.
        """
        self._refresh = refresh
        self._log = log
        self._entries = entries
        self._writer = writer
        self._tidy = tidy
        self._clock = clock
        self._roles = roles

    async def check(self, spec: ExperimentSpec, host: Host, judge: SubmissionJudge) -> ExperimentSpec:
        """The specification as `submit` would append it for a new key. Raises ConflictError as it does."""
        spec = within_reach(spec, self._roles)
        if spec.half != "both" and self._half(spec, None, judge.asker) in self._entries:
            return spec
        if is_bench(spec) and (measured := await self._measured(spec, judge.asker)):
            benches = [await self._bench(each, spec) for each in measured]
            return _telling(benches[-1][0], [bench.name for bench, _ in benches])
        # Nothing is tidied: what a crash left in the folder of a removed experiment goes when somebody submits.
        spec, _ = await self._begun(spec, host, judge.asker, tidy=False)
        self._room()
        return spec

    def filled(self, spec: ExperimentSpec) -> dict[str, Any]:
        """The file of a half, with what it leaves out and the half that is there says of the fields that both use."""
        there = [each for each in self._entries.values() if each.job_dir == spec.job_dir and each.spec.half != "both"]
        known = next((each for each in there if not each.spine.ended), None)
        if known is None:
            return spec.config
        tasks_elsewhere = spec.half == TRAIN and not has_tasks(spec)
        other_half = relocated(known.spec, known.spine)
        return filled(spec.config, other_half.config, *(_OF_BATCH if tasks_elsewhere else ()))

    async def submit(
        self, spec: ExperimentSpec, host: Host, judge: SubmissionJudge, *, key: UUID, id: UUID, base: UUID | None = None
    ) -> Accepted:
        """See `Operations.submit`; `spec` has passed the preflight for `host`, and the event gets this id.

        An experiment that begins anew is a fork of `base` at step 0, if its first weights are evaluated there.
        """
        spec = within_reach(spec, self._roles)
        if is_bench(spec) and (measured := await self._measured(spec, judge.asker)):
            return await self._submit_benches(measured, spec, judge, key=key, id=id)
        experiment = self._half(spec, id, judge.asker) if spec.half != "both" else made_by(key)
        known = self._entries.get(experiment)
        forked: life.ExperimentForked | None = None
        if known is None:
            spec, forked = await self._begun(spec, host, judge.asker)
            if forked is None and base is not None and base in self._entries:
                spec, forked = await based(self._log, self._entries[base], spec, host)
            self._room()
        elif spec.half == "both":  # what the request decided before a crash: memory and folders may be others now
            spec = known.spec
        submitted = submitted_by(judge.asker, spec)
        drafts = [self._writer.draft(submitted, experiment=experiment, id=id, correlation=key)]
        if forked is not None:  # in the same append: no reader meets a continuation whose history it does not know
            ours = derive(experiment, "fork")
            drafts.append(self._writer.draft(forked, experiment=experiment, id=ours, correlation=key))
        faults.point("submission.before_append")
        position = (await self._log.append(drafts))[0]
        # A crash between the two appends leaves an experiment that is submitted and never accepted. The same request
        # finds it under the id that follows from its key, and accepts it then.
        faults.point("submission.between_appends")
        # A train half that leaves the tasks to the other one is accepted with it: no worker is to begin before.
        whole = spec.half != TRAIN or has_tasks(spec) or (known is not None and has_tasks(known.spec))
        if whole and (known is None or known.status is Status.SUBMITTED):
            earlier_warnings = known.spec.warnings if known is not None else ()
            earlier_grants = known.spine.grants if known is not None else ()
            grants = tuple(dict.fromkeys((*earlier_grants, *judge.grants)))
            await self._accept(experiment, tuple(dict.fromkeys((*earlier_warnings, *spec.warnings))), grants)
        if spec.half != "both":
            await self._check_half(experiment, spec)
        return Accepted(experiment=experiment, name=spec.name, event=id, position=position, warnings=spec.warnings)

    async def _measured(self, spec: ExperimentSpec, asker: Asker) -> list[Measured]:
        """The checkpoints that a bench is of; none if it is of a model. Raises ConflictError."""
        measured = await checkpoints_to_measure(self._log, self._entries.values(), spec)
        for checkpoint in measured:
            if checkpoint.parent is not None:
                asker.check_concerned(checkpoint.parent.spine.submitted_by, name=checkpoint.parent.name)
        self._room(len(measured))
        return measured

    async def _bench(
        self, measured: Measured, spec: ExperimentSpec
    ) -> tuple[ExperimentSpec, life.ExperimentForked | None]:
        name = self._free_name(measured.name(spec.name), Path(spec.job_dir).parent)
        return await bench_of(self._log, measured, spec, name)

    async def _submit_benches(
        self, measured: Sequence[Measured], spec: ExperimentSpec, judge: SubmissionJudge, *, key: UUID, id: UUID
    ) -> Accepted:
        """Takes in a bench for each checkpoint, in their order. The answer is that of the last one, which has the key.

        Cut off in between and sent again, it finds those that are there under keys that follow from its own.
        """
        names: list[str] = []
        keys = [*(derive(key, "bench", each.step) for each in measured[:-1]), key]
        for each, own in zip(measured, keys, strict=True):
            experiment = made_by(own)
            known = self._entries.get(experiment)
            if known is None:
                bench, forked = await self._bench(each, spec)
                # The last one is what the daemon answers with, so it names them all.
                bench = _telling(bench, [*names, bench.name]) if own == key else bench
            else:
                bench = known.spec
                forked = known.spine.forked
            names.append(bench.name)
            event = id if own == key else derive(experiment, "submit")
            drafts = [
                self._writer.draft(submitted_by(judge.asker, bench), experiment=experiment, id=event, correlation=own)
            ]
            if forked is not None:
                fork = derive(experiment, "fork")
                drafts.append(self._writer.draft(forked, experiment=experiment, id=fork, correlation=own))
            faults.point("submission.before_append")
            position = (await append_when_space(self._log, drafts, clock=self._clock))[0]
            if known is None or known.status is Status.SUBMITTED:
                await self._accept(experiment, bench.warnings, judge.grants)
        return Accepted(experiment=experiment, name=bench.name, event=id, position=position, warnings=bench.warnings)

    def _half(self, spec: ExperimentSpec, event: UUID | None, asker: Asker) -> UUID:
        """The experiment that this is a half of: one that lives, else a new one; that of the event, if it is there.

        Its id follows from its folder, so that two daemons that take in a half each at once mean the same one. Raises
        ConflictError if the half is there already, or is one of something else.
        """
        if (
            event
            and (again := next((each for each in self._entries.values() if each.spine.holds(event)), None)) is not None
        ):
            return again.id
        # By number as well as by folder: a folder may see several experiments of two halves, one after the other, and
        # each pair needs an id of its own.
        same = [each for each in self._entries.values() if each.job_dir == spec.job_dir and each.spec.half != "both"]
        known = next((each for each in same if not each.spine.ended), None)
        if known is None:
            return derive(NAMESPACE, "halves", spec.job_dir, len(same))
        # What the first half was granted would serve the second one's submitter, and the other way round.
        asker.check_same(known.spine.submitted_by, name=known.name)
        if halves_of(spec) <= known.spine.halves:
            raise ConflictError(
                f"{known.name} has its {spec.half} half already",
                field="mode",
                fix=f"submit the other half with mode: {' or '.join(sorted(BOTH - halves_of(spec)))}, or cancel it",
            )
        if isinstance(found := joined(known.spec, spec, trained=known.spine.generation >= 0), Disagreement):
            raise _unlike(known.name, found)
        return known.id

    async def _check_half(self, experiment: UUID, spec: ExperimentSpec) -> None:
        """Raises ConflictError if another daemon has taken in something else of this name meanwhile."""
        await self._refresh()
        entry = self._entries[experiment]
        if not halves_of(spec) <= entry.spine.halves:
            found = joined(entry.spec, spec, trained=entry.spine.generation >= 0)
            own = Disagreement("half", entry.spec.half, spec.half)
            raise _unlike(entry.name, found if isinstance(found, Disagreement) else own)

    async def fork(self, wanted: WantedFork, host: Host, judge: SubmissionJudge, *, key: UUID, id: UUID) -> Position:
        """See `Operations.fork`, for workers on `host`; the submission gets this id. The position of its last event."""
        child = made_by(key)
        known = self._entries.get(child)
        if known is None or known.status is Status.SUBMITTED:
            spec, event = await self._forked(wanted, host, judge)
            if known is None:
                spec = await self._housed(spec)
                self._room()
            else:
                spec = known.spec
        elif known.spine.forked is None:
            raise ReusedKeyError(
                "this request id is that of another command", field="Idempotency-Key", fix="send a new one"
            )
        else:
            spec = known.spec
            event = known.spine.forked
        # One append, with ids that follow from the key: repeated after a crash or a time-out, it adds nothing, and no
        # reader meets a fork whose parent it does not know.
        drafts = [
            self._writer.draft(submitted_by(judge.asker, spec), experiment=child, id=id, correlation=key),
            self._writer.draft(event, experiment=child, id=derive(child, "fork"), correlation=key),
        ]
        position = (await append_when_space(self._log, drafts, clock=self._clock))[-1]
        if known is None or known.status is Status.SUBMITTED:
            await self._accept(child, spec.warnings, judge.grants)
        return position

    async def _forked(
        self, wanted: WantedFork, host: Host, judge: SubmissionJudge
    ) -> tuple[ExperimentSpec, life.ExperimentForked]:
        """The fork's specification and what it shares. Raises NotFoundError, ConfigError, DataError, ConflictError."""
        experiment = wanted.experiment
        at_step = wanted.at_step
        entry = self._entries.get(experiment)
        if entry is None or entry.spine.spec is None:
            raise NotFoundError(f"no experiment {experiment}", fix="see rftd ls")
        check_parent(entry.name, entry.spine)
        parent = relocated(entry.spine.spec, entry.spine)
        shared = await shared_history(self._log, experiment, at_step)
        if shared.forked.parent != experiment and shared.spine.spec is not None:
            check_parent(shared.spine.spec.name, shared.spine)
        check_payloads(entry.name, shared.spine, at_step)
        name = wanted.name or self._free_name(f"{entry.name}-fork-{at_step}", Path(parent.job_dir).parent)
        spec = await asyncio.to_thread(
            forked_spec, parent, shared, wanted.overrides, name=name, labels=wanted.labels, host=host, judge=judge
        )
        spec = within_reach(spec, self._roles)
        notes = lineage_note(experiment, entry.name, shared)
        spec = msgspec.structs.replace(spec, warnings=(*spec.warnings, *notes))
        return spec, msgspec.structs.replace(shared.forked, evaluated=evaluated(spec, shared))

    def _free_name(self, name: str, folder: Path) -> str:
        """The name, or with a number behind it if an experiment or a folder has it."""
        taken = {entry.name for entry in self._entries.values()}
        candidates = chain([name], (f"{name}-{number}" for number in count(2)))
        return next(each for each in candidates if each not in taken and not (folder / each).exists())

    async def _accept(self, experiment: UUID, warnings: tuple[str, ...], grants: tuple[life.Grant, ...]) -> None:
        # Read before the acceptance is written: readers of the experiment begin at these positions, so nothing of it
        # may lie below them.
        heads = as_refs(await self._log.heads())
        events: list[Event] = [life.ExperimentWarned(text=text) for text in warnings]
        events.append(life.ExperimentAccepted(start=heads, grants=grants))
        drafts: list[Draft] = [
            self._writer.draft(event, experiment=experiment, id=derive(experiment, "accept", number))
            for number, event in enumerate(events)
        ]
        await append_when_space(self._log, drafts, clock=self._clock)

    async def _begun(
        self, spec: ExperimentSpec, host: Host, asker: Asker, *, tidy: bool = True
    ) -> tuple[ExperimentSpec, life.ExperimentForked | None]:
        """The specification in a folder of its own, and the history that it goes on from, if there is one.

        With `continue_from_checkpoint`, a folder in which an experiment ended is left to that one, as the owner of its
        files, and the new one gets a folder beside it. Raises ConflictError, ConfigError.
        """
        before = earlier(self._entries.values(), spec)
        running = next((entry for entry in before if entry.status and not entry.status.ended), None)
        if running is not None:
            raise ConflictError(
                f"{running.name}, an experiment that has not ended, uses {running.job_dir}",
                field="name",
                fix="cancel it, or choose a name",
            )
        kept = [entry for entry in before if entry.spine.kept is not Kept.REMOVED]
        if not kept or not await asyncio.to_thread(_used, Path(spec.job_dir)):
            return await self._housed(spec, tidy=tidy), None
        asker.check_concerned(kept[-1].spine.submitted_by, name=kept[-1].name)
        check_parent(kept[-1].name, kept[-1].spine)
        name = self._free_name(stamped(spec.name, self._clock.now_ns()), Path(spec.job_dir).parent)
        own = moved(spec, name, str(Path(spec.job_dir).with_name(name)))
        spec, forked = await continued(self._log, kept[-1], own, host)
        return await self._housed(spec, tidy=tidy), forked

    async def _housed(self, spec: ExperimentSpec, *, tidy: bool = True) -> ExperimentSpec:
        """The specification with a job folder of its own. Raises ConflictError if the folder is in use."""
        live = [entry for entry in self._entries.values() if entry.status and not entry.status.ended]
        if any(entry.job_dir == spec.job_dir for entry in live):
            raise ConflictError(
                f"an experiment that has not ended uses {spec.job_dir}", field="name", fix="cancel it, or choose a name"
            )
        # Before looking into the folder: what a crash left of a removed experiment there would read as one in use.
        if tidy:
            await self._tidy()
        archived = [entry for entry in self._entries.values() if entry.spine.kept is Kept.ARCHIVED]
        if any(entry.job_dir == spec.job_dir for entry in archived):
            raise ConflictError(
                f"the files of an archived experiment belong into {spec.job_dir}",
                field="name",
                fix="choose another name, or remove that experiment with rftd rm",
            )
        used = await asyncio.to_thread(_used, Path(spec.job_dir))
        if not used:
            return spec
        # A bench of a model goes on from nothing, and may be asked for again and again.
        if spec.half != "both" or (spec.config.get("continue_from_checkpoint", True) and not is_bench(spec)):
            raise ConflictError(
                f"{spec.job_dir} holds another experiment",
                field="name",
                fix="choose another name"
                + (", or set continue_from_checkpoint: false for a folder with a time stamp" * (spec.half == "both")),
            )
        # Two may be submitted in one second.
        name = self._free_name(stamped(spec.name, self._clock.now_ns()), Path(spec.job_dir).parent)
        return moved(spec, name, str(Path(spec.job_dir).with_name(name)))

    def _room(self, new: int = 1) -> None:
        """Raises ConflictError if so many more cannot wait."""
        queued = sum(1 for entry in self._entries.values() if entry.status is Status.QUEUED)
        if queued + new > limits.QUEUED_EXPERIMENTS:
            raise ConflictError(f"{queued} experiments wait already", fix="cancel some of them")


def _telling(bench: ExperimentSpec, names: Sequence[str]) -> ExperimentSpec:
    """The last bench of several, with a warning that names them all."""
    if len(names) == 1:
        return bench
    said = f"mode bench measures {len(names)} checkpoints, each in an experiment of its own: {', '.join(names)}"
    return msgspec.structs.replace(bench, warnings=(*bench.warnings, said))


def submitted_by(asker: Asker, spec: ExperimentSpec) -> life.ExperimentSubmitted:
    """The event of a submission, with the name and the role of its asker."""
    return life.ExperimentSubmitted(spec=spec, by=asker.name, role=asker.role.label)


def made_by(key: UUID) -> UUID:
    """The experiment that a submission or a fork under this key makes: two of one key lie on one spine, in order."""
    return derive(key, "experiment")


def _unlike(name: str, found: Disagreement) -> ConflictError:
    there, here = (textwrap.shorten(repr(value), 100) for value in (found.one, found.other))
    return ConflictError(
        f"{name} was submitted with {found.field}: {there}, and here it is {here}: they are not two halves of one "
        "experiment",
        field=found.field,
        fix="write it alike in both files, for both halves use it",
    )


def _used(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())
