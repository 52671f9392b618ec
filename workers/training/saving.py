"""Checkpoints: files are written durably first, and then announced by an event; deletions are events too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

import msgspec

from rftd.ops import faults
from rftd.ops.clock import Clock
from rftd.ops.errors import DataError
from rftd.storage.files.checkpoint_witness import CheckpointWitness, write_witness
from rftd.storage.files.checkpoints import (
    Former,
    Staged,
    place_folder,
    place_markers,
    stage_folder,
    stage_markers,
    verify,
)
from rftd.storage.files.own_places import checkpoint_folder, is_own_checkpoint
from rftd.storage.files.service_state import ServiceState
from rftd.storage.files.workplace import Workplace
from rftd.streams.events.checkpoint import CheckpointCommitted, CheckpointDeleted
from rftd.streams.events.step import GenerationStarted, SpineMark, StepCompleted
from rftd.streams.folds.run_state import RunState
from rftd.streams.log.log import EventLog
from rftd.streams.log.role import RoleLease, as_refs
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.datasets.stage_tokenizer import place_template
from rftd.workers.learning.engine import RemoteEngine, TrainerEngine, check_saved
from rftd.workers.training.tidying import discard, named_states


class Saver:
    """Writes `global_step_N` folders in the quick start's layout, N counted within the stage."""

    def __init__(
        self,
        engine: TrainerEngine,
        lease: RoleLease,
        state: RunState,
        spec: ExperimentSpec,
        *,
        log: EventLog,
        thread: Executor,
        clock: Clock,
    ) -> None:
        """Saves weights of `engine` under the trainer's lease; files are written on `thread`, the engine's own."""
        self._engine = engine
        self._lease = lease
        self._state = state
        self._spec = spec
        self._log = log
        self._thread = thread
        self._clock = clock

    async def save(self, done: StepCompleted, stage_step: int) -> CheckpointCommitted | None:
        """Writes and commits a checkpoint of the step just completed; None if equal weights are committed with complete
        files.
        """
        if await asyncio.get_running_loop().run_in_executor(self._thread, self._is_saved, done):
            return None
        folder = self.folder_of(done.stage) / f"global_step_{stage_step}"
        former = await asyncio.to_thread(named_states, [folder])
        event = await self._written(
            done.step, done.generation, done.stage, stage_step, done.checksum, done.sha256, done.spine
        )
        # Only now is it a checkpoint: a folder without an event is removed by the next trainer.
        await self._lease.append([self._lease.writer.draft(event, experiment=self._state.experiment)])
        faults.point("checkpoint.after_append")
        await self.forget(former)
        await self._retain(done.stage, self._spec.stages[done.stage].trainer.max_checkpoints_to_keep)
        return event

    async def begin(self, started: GenerationStarted, stage: int, stage_step: int) -> CheckpointCommitted:
        """Commits a fork's first checkpoint: the version shared with the parent, now loaded in the engine.

        From then on the fork needs none of the parent's files.
        """
        event = await self._written(
            started.version, started.generation, stage, stage_step, started.checksum, None, None
        )
        writer = self._lease.writer
        experiment = self._state.experiment
        # One append: a generation of a fork without its checkpoint would need the parent's files once more.
        await self._lease.append(
            [writer.draft(event_of_start, experiment=experiment) for event_of_start in (started, event)]
        )
        faults.point("checkpoint.after_append")
        return event

    async def _written(
        self,
        step: int,
        generation: int,
        stage: int,
        stage_step: int,
        checksum: str,
        sha256: str | None,
        spine: SpineMark | None,
    ) -> CheckpointCommitted:
        """Writes the files of a checkpoint durably, and returns its event."""
        began_s = self._clock.monotonic_s()
        off_loop = partial(asyncio.get_running_loop().run_in_executor, self._thread)
        spec = (self._state.spine.spec or self._spec).stages[stage]  # the end of a queue shortens the stage
        final = stage_step == spec.total_steps
        hf = spec.trainer.save_hf == "always" or (spec.trainer.save_hf == "last" and final)
        folder = self.folder_of(stage) / f"global_step_{stage_step}"

        witness = CheckpointWitness(
            experiment=self._state.experiment,
            step=step,
            generation=generation,
            heads=as_refs(await self._log.heads()),
            spine=spine,
        )
        within = Workplace(folder.parent, self._lease.writer.epoch)
        former = self._former(stage)

        def fill(beside: Path) -> None:
            self._engine.save(beside, hf=hf)
            place_template(beside, spec)
            # In the folder too: a rewritten log with a recomputed chain disagrees with the heads in checkpoints.
            write_witness(beside, witness)

        def write() -> Staged:
            within.open()
            staged = stage_folder(folder, fill, within=within.path, former=former)
            check_saved(self._engine, step, checksum)
            stage_markers(folder.parent, stage_step, within=within.path)
            return staged

        def place(staged: Staged) -> CheckpointCommitted:
            place_folder(staged, folder)
            place_markers(folder.parent, within=within.path)
            return CheckpointCommitted(
                step=step,
                generation=generation,
                stage=stage,
                stage_step=stage_step,
                path=str(folder),
                files=staged.files,
                size_bytes=sum(file.size_bytes for file in staged.files),
                checksum=checksum,
                # On the engine's thread: no step can change the weights between their files and their digest.
                sha256=sha256 or self._engine.sha256(),
                final=final,
            )

        # Written and synced beside its final path, under a name unique to this epoch; nothing visible to others has
        # changed yet.
        staged = await off_loop(write)
        # From here on only names change, and only until a successor takes the workplace away.
        await self._lease.confirm()
        committed = await off_loop(place, staged)
        await self._lease.confirm()  # replaced files are a successor's to put back, if there is one
        await off_loop(within.close)
        faults.point("checkpoint.after_files")
        duration_s = self._clock.monotonic_s() - began_s
        heads = as_refs(await self._log.heads())
        return msgspec.structs.replace(committed, heads=heads, spine=spine, duration_s=duration_s)

    def _former(self, stage: int) -> Former | None:
        """Returns the last checkpoint of the stage: its reference model never changes, and is not stored again."""
        of_stage = (
            checkpoint for checkpoint in reversed(self._state.checkpoints.values()) if checkpoint.stage == stage
        )
        last = next((checkpoint for checkpoint in of_stage if is_own_checkpoint(self._spec, checkpoint.path)), None)
        return None if last is None else Former(Path(last.path), last.files)

    def _is_saved(self, done: StepCompleted) -> bool:
        """True if equal weights are committed and their files are whole; a damaged checkpoint is written again."""
        for (step, _), committed in self._state.checkpoints.items():
            if step == done.step and committed.checksum == done.checksum:
                try:
                    verify(checkpoint_folder(self._spec, committed), committed.files)
                except DataError:
                    continue
                return True
        return False

    def folder_of(self, stage: int) -> Path:
        """Returns the folder of a stage's checkpoints: the job's folder, or a subfolder in an experiment with several
        stages.
        """
        return Path(self._spec.stages[stage].folder or self._spec.job_dir)

    async def _retain(self, stage: int, keep: int) -> None:
        """Deletes the folders beyond the `keep` committed last; generations that saved a step share one folder.

        Checkpoints kept for their evaluation do not count.

        The lowest steps are not the criterion: the newest generation may have found higher ones damaged, and the last
        commit was just written.
        """
        folders: dict[str, list[tuple[int, int]]] = {}
        for key, event in self._state.checkpoints.items():
            if event.stage == stage:
                # pop and set again: the folder moves to the end, so the order follows the last commit into it.
                folders[event.path] = [*folders.pop(event.path, ()), key]
        surplus = list(folders)[:-keep] if keep > 0 else []
        for path in [path for path in surplus if not self._is_chosen(stage, folders[path])]:
            deleted = [
                CheckpointDeleted(step=step, generation=generation, path=path, reason="retention")
                for step, generation in folders[path]
            ]
            writer = self._lease.writer
            experiment = self._state.experiment
            await self._lease.append([writer.draft(event, experiment=experiment) for event in deleted])
            faults.point("checkpoint.before_removal")
            # After the events: a crash in between leaves files without a name in the log, removed by the next trainer.
            # A record may name any folder: a foreign folder is given up by name alone.
            is_own = await asyncio.to_thread(is_own_checkpoint, self._spec, path)
            states = await asyncio.to_thread(named_states, [Path(path)] if is_own else [])
            await discard(self._lease, [Path(path)] if is_own else [])
            # Last: until the lease was confirmed a successor might have resumed from it.
            await self.forget(states)

    def _is_chosen(self, stage: int, keys: Sequence[tuple[int, int]]) -> bool:
        """True if the folder is kept for its evaluation, or may be once that is complete."""
        spine = self._state.spine
        if spine.spec is None or spine.stage != stage:
            return False
        return any(spine.scores.keeps(step, spine.spec.stages[stage]) for step, _ in keys)

    async def forget(self, states: Sequence[ServiceState]) -> None:
        """Lets the training service delete the states named by deleted checkpoints."""
        engine = self._engine
        if isinstance(engine, RemoteEngine):
            for state in states:
                await asyncio.get_running_loop().run_in_executor(self._thread, engine.forget, state)
