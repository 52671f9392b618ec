"""Checkpoints: files first, made durable and visible at once, then their event; retention by events too."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import Executor
from pathlib import Path

import msgspec

from rftd.ops import faults
from rftd.storage.checkpoints import commit_folder, mark_latest
from rftd.streams.events.checkpoint import CheckpointCommitted, CheckpointDeleted
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.run_state import RunState
from rftd.streams.log import EventLog
from rftd.streams.role import RoleLease, as_refs
from rftd.streams.spec import ExperimentSpec
from rftd.workers.trainer.engine import TrainerEngine


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
    ) -> None:
        self._engine = engine
        self._lease = lease
        self._state = state
        self._spec = spec
        self._log = log
        self._thread = thread

    async def save(self, done: StepCompleted, stage_step: int) -> None:
        """Commits a checkpoint of the step that was just completed, unless an equal one is committed."""
        if any(
            step == done.step and committed.checksum == done.checksum
            for (step, _), committed in self._state.checkpoints.items()
        ):
            return
        stage = self._spec.stages[done.stage]
        final = stage_step == stage.total_steps
        hf = stage.trainer.save_hf == "always" or (stage.trainer.save_hf == "last" and final)
        folder = self.folder_of(done.stage) / f"global_step_{stage_step}"

        def write() -> CheckpointCommitted:
            files = commit_folder(folder, lambda temporary: self._engine.save(temporary, hf=hf))
            mark_latest(folder.parent, stage_step)
            return CheckpointCommitted(
                step=done.step,
                generation=done.generation,
                stage=done.stage,
                stage_step=stage_step,
                path=str(folder),
                files=files,
                size_bytes=sum(file.size_bytes for file in files),
                checksum=done.checksum,
                sha256=done.sha256 or self._engine.sha256(),
                final=final,
            )

        committed = await asyncio.get_running_loop().run_in_executor(self._thread, write)
        faults.point("checkpoint.after_files")
        heads = as_refs(await self._log.heads())
        event = msgspec.structs.replace(committed, heads=heads)
        await self._lease.append([self._lease.writer.draft(event, experiment=self._state.experiment)])
        faults.point("checkpoint.after_append")
        await self._retain(done.stage, stage.trainer.max_checkpoints_to_keep)

    def folder_of(self, stage: int) -> Path:
        """Where a stage's checkpoints lie: the job's folder, or one below it if the experiment has several stages."""
        return Path(self._spec.stages[stage].folder or self._spec.job_dir)

    async def _retain(self, stage: int, keep: int) -> None:
        kept = sorted(key for key, event in self._state.checkpoints.items() if event.stage == stage)
        for key in kept[:-keep] if keep > 0 else ():
            event = self._state.checkpoints[key]
            deleted = CheckpointDeleted(step=key[0], generation=key[1], path=event.path, reason="retention")
            await self._lease.append([self._lease.writer.draft(deleted, experiment=self._state.experiment)])
            faults.point("checkpoint.before_removal")
            await asyncio.to_thread(shutil.rmtree, event.path, ignore_errors=True)
