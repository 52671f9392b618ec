"""Weights for explorers: files first, then their event; old versions are retired once nothing needs them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from rftd.ops import faults, limits
from rftd.streams.events.weights import WeightsPublished, WeightsRetired
from rftd.streams.folds.run_state import RunState
from rftd.streams.role import RoleLease
from rftd.streams.spec import ExperimentSpec
from rftd.workers.dispatcher.evaluation import due_evals
from rftd.workers.trainer.engine import TrainerEngine, WeightsSnapshot


class Publisher:
    """Announces the engine's weights. The channel is `checkpoint`: a folder of safetensors below the job's folder."""

    def __init__(
        self, engine: TrainerEngine, lease: RoleLease, state: RunState, spec: ExperimentSpec, thread: Executor
    ) -> None:
        self._engine = engine
        self._under_way: asyncio.Task[None] | None = None
        self._lease = lease
        self._state = state
        self._folder = Path(spec.job_dir) / "weights"
        self._thread = thread

    async def publish(self, version: int, generation: int, stage: int, checksum: str) -> None:
        """Announces (version, generation), unless equal weights of that version are announced already (rule 8).

        Weights of the same version that differ, from a generation before, are retired.
        """
        older = self._announced(version)
        if not any(event.checksum == checksum for event in older):
            await self._write(await self._snapshot(), version, generation, stage, older)

    async def publish_aside(
        self, tasks: asyncio.TaskGroup, version: int, generation: int, stage: int, checksum: str
    ) -> None:
        """The same, of the weights as they are now, while the caller goes on; waits for the one before."""
        await self.settle()
        older = self._announced(version)
        if any(event.checksum == checksum for event in older):
            return
        snapshot = await self._snapshot()
        self._under_way = tasks.create_task(self._write(snapshot, version, generation, stage, older))

    async def settle(self) -> None:
        """Returns once what was published aside is in the log."""
        if self._under_way is not None:
            await self._under_way
            self._under_way = None

    def _announced(self, version: int) -> list[WeightsPublished]:
        weights, spine = self._state.weights, self._state.spine
        return [
            event
            for event in weights.published.values()
            if event.version == version and weights.counts(version, event.generation, spine)
        ]

    async def _snapshot(self) -> WeightsSnapshot:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.snapshot)

    async def _write(
        self,
        snapshot: WeightsSnapshot,
        version: int,
        generation: int,
        stage: int,
        older: Sequence[WeightsPublished],
    ) -> None:
        folder = self._folder / f"v{version}-g{generation}"
        exported = await asyncio.to_thread(snapshot.export, folder, version=version, generation=generation)
        faults.point("weights.after_files")
        event = WeightsPublished(
            version=version,
            generation=generation,
            stage=stage,
            method="checkpoint",
            path=exported.path,
            manifest=exported.manifest,
            checksum=exported.checksum,
            size_bytes=exported.size_bytes,
        )
        await self._lease.append([self._lease.writer.draft(event, experiment=self._state.experiment)])
        faults.point("weights.after_append")
        for event in older:
            await self._retire(event, "another generation differs")
        await self._retire_old()

    async def _retire_old(self) -> None:
        """Retires versions below the newest few that no evaluation and no pinned rollout can still need."""
        state = self._state
        if state.spine.stage < 0:
            return
        stage = state.spine.stage_spec()
        sync = stage.sync
        kept = max(limits.KEPT_WEIGHT_VERSIONS, sync.offset + 2 * sync.interval)
        lowest = state.spine.version - kept * sync.interval
        wanted = {version for version, _ in due_evals(state, stage)}
        for key, event in list(state.weights.published.items()):
            if key not in state.weights.retired and event.version < lowest and event.version not in wanted:
                await self._retire(event, "newer versions exist")

    async def _retire(self, event: WeightsPublished, reason: str) -> None:
        retired = WeightsRetired(version=event.version, generation=event.generation, reason=reason)
        await self._lease.append([self._lease.writer.draft(retired, experiment=self._state.experiment)])
        faults.point("weights.before_removal")
        await asyncio.to_thread(shutil.rmtree, event.path, ignore_errors=True)
