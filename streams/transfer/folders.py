"""Absolute paths in events, moved from the folders of one machine to those of another."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

import msgspec

from rftd.ops.paths import plain_path
from rftd.streams.events.checkpoint import CheckpointCommitted, CheckpointDeleted
from rftd.streams.events.experiment import ExperimentSubmitted
from rftd.streams.events.registry import Event
from rftd.streams.events.step import GenerationStarted
from rftd.streams.events.weights import WeightsPublished
from rftd.streams.spec import ExperimentSpec, LoraSpec, StageSpec, TasksetSpec

_replace: Final = msgspec.structs.replace


class Folders:
    """Old folders and the new ones in their place; of several that fit a path the longest counts."""

    def __init__(self, moves: Iterable[tuple[str, str]] = ()) -> None:
        self.moves: Final = sorted(
            ((PurePosixPath(plain_path(old)), PurePosixPath(plain_path(new))) for old, new in moves),
            key=lambda move: -len(move[0].parts),
        )

    def path(self, text: str) -> str:
        """The path where it lies now; paths below no moved folder, and words that are no path, stay."""
        if not text.startswith("/"):
            return text
        path = PurePosixPath(plain_path(text))
        for old, new in self.moves:
            if path.is_relative_to(old):
                return str(new / path.relative_to(old))
        return text

    def covers(self, text: str) -> bool:
        """True if a moved folder is, or holds, this path."""
        return any(PurePosixPath(plain_path(text)).is_relative_to(old) for old, _ in self.moves)

    def event(self, event: Event) -> Event:
        """The event with its paths moved. The user's own file in `spec.config` stays as it was written."""
        if not self.moves:
            return event
        match event:
            case ExperimentSubmitted():
                return _replace(event, spec=self._spec(event.spec))
            case CheckpointCommitted() | CheckpointDeleted() | WeightsPublished():
                return _replace(event, path=self.path(event.path))
            case GenerationStarted():
                return _replace(event, checkpoint=self.path(event.checkpoint))
            case _:
                return event

    def _spec(self, spec: ExperimentSpec) -> ExperimentSpec:
        return _replace(spec, job_dir=self.path(spec.job_dir), stages=tuple(map(self._stage, spec.stages)))

    def _stage(self, stage: StageSpec) -> StageSpec:
        return _replace(
            stage,
            folder=self.path(stage.folder),
            model=_replace(stage.model, path=self.path(stage.model.path), lora=self._lora(stage.model.lora)),
            taskset=self._taskset(stage.taskset),
            dataset=self._taskset(stage.dataset),
            evals=tuple(_replace(each, path=self.path(each.path)) for each in stage.evals),
            sync=_replace(stage.sync, memory_dir=self.path(stage.sync.memory_dir)),
            trainer=_replace(
                stage.trainer,
                critic_path=self.path(stage.trainer.critic_path),
                teacher_path=self.path(stage.trainer.teacher_path),
            ),
        )

    def _lora(self, spec: LoraSpec | None) -> LoraSpec | None:
        return _replace(spec, path=self.path(spec.path)) if spec is not None else None

    def _taskset(self, spec: TasksetSpec | None) -> TasksetSpec | None:
        return _replace(spec, path=self.path(spec.path)) if spec is not None else None


def inputs_of(spec: ExperimentSpec) -> set[str]:
    """The models, adapters and datasets that the experiment reads, as absolute paths; no export carries them."""
    found = set[str]()
    for stage in spec.stages:
        lora = stage.model.lora
        found |= {stage.model.path, stage.trainer.critic_path, stage.trainer.teacher_path, lora.path if lora else ""}
        found |= {each.path for each in (stage.taskset, stage.dataset, *stage.evals) if each is not None}
    return {path for path in found if path.startswith("/")}
