"""`within_reach`: adapts a specification so that workers started by the daemon can reach the weights."""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.streams.spec.spec import ExperimentSpec, StageSpec

_MEMORY: Final = "memory"
"""Synchronisation method handing weights over in memory."""
_AS_FILES_WARNING: Final = (
    "synchronizer.sync_method memory: another daemon starts the explorers, maybe on another machine, so weights travel "
    "as checkpoint files; a daemon with --roles both on one machine shares its memory"
)
"""Warning: weights travel as files instead of in memory."""
_ONE_MACHINE_WARNING: Final = (
    "synchronizer.sync_method memory: external explorers on another machine than the trainer cannot load the weights; "
    "for such write synchronizer.sync_method: checkpoint, with a job folder that every machine sees"
)
"""Warning: explorers on other machines cannot load weights from memory."""


def within_reach(spec: ExperimentSpec, roles: frozenset[str]) -> ExperimentSpec:
    """Returns the specification with a weight channel usable by workers of the `roles`; a new warning describes a
    change.
    """
    if "explorer" in roles or not any(_in_memory(stage) for stage in spec.stages):
        return spec
    if not roles:  # the operator starting the workers knows where they run
        return msgspec.structs.replace(spec, warnings=(*spec.warnings, _ONE_MACHINE_WARNING))
    stages = tuple(_with_checkpoint_sync(stage) if _in_memory(stage) else stage for stage in spec.stages)
    return msgspec.structs.replace(spec, stages=stages, warnings=(*spec.warnings, _AS_FILES_WARNING))


def _in_memory(stage: StageSpec) -> bool:
    """True if weights travel in the explorers' machine memory; sides sharing a device share a machine anyway."""
    return stage.kind == "both" and stage.synchronizer.sync_method == _MEMORY and not stage.turns


def _with_checkpoint_sync(stage: StageSpec) -> StageSpec:
    """Returns the stage with weights travelling as checkpoint files."""
    by_files = msgspec.structs.replace(stage.synchronizer, sync_method="checkpoint")
    return msgspec.structs.replace(stage, synchronizer=by_files)
