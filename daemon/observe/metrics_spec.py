"""`Declared`: the part of an experiment's specification used for labels and limits of its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from rftd.daemon.run.supervisor.worker_orders import worker_orders
from rftd.ops.metrics import shortened
from rftd.streams.spec.spec import ExperimentSpec, StageSpec


@dataclass(frozen=True, slots=True)
class DeclaredStage:
    """Fields of one stage's specification used by metrics."""

    taskset: str
    """Name of the taskset as a label; empty without one."""
    method: str
    """Weight channel; empty if no explorer loads the trained weights."""
    capacity: int
    """Maximum number of waiting or cooling experiences; 0: unlimited."""
    max_staleness_versions: int | None
    """Maximum staleness in a batch; None without a bound."""
    at_work: tuple[str, ...]
    """Roles with permanent work in the stage; serving and evaluating roles may be idle."""


@dataclass(frozen=True, slots=True)
class Declared:
    """Fields of an experiment's specification used by metrics: labels and limits of stages, GPUs per worker."""

    stages: tuple[DeclaredStage, ...]
    """The stages in order."""
    accelerators: Mapping[str, int]
    """Number of GPUs held by one worker, by role; 0: none."""

    def stage(self, number: int) -> DeclaredStage | None:
        """Returns the stage with this number; None if there is none."""
        return self.stages[number] if 0 <= number < len(self.stages) else None

    @property
    def methods(self) -> tuple[str, ...]:
        """Weight channels of the stages, in the order of the stages and without duplicates or empty names."""
        return tuple(dict.fromkeys(stage.method for stage in self.stages if stage.method))


def declared_by(id: UUID, spec: ExperimentSpec) -> Declared:
    """Returns the metrics' part of the specification of experiment `id`."""
    # Without a stage, never written by rftd itself, it wants no workers.
    orders = worker_orders(id, spec, 0) if spec.stages else ()
    return Declared(tuple(map(_declared_stage, spec.stages)), {order.role: order.devices for order in orders})


def _declared_stage(spec: StageSpec) -> DeclaredStage:
    """Returns the metrics' part of a stage's specification."""
    explores = spec.kind != "train"
    bounded = explores and spec.policy.bounded
    return DeclaredStage(
        taskset=shortened(spec.taskset.name) if spec.taskset is not None else "",
        method=spec.synchronizer.sync_method if explores else "",
        capacity=spec.policy.capacity if explores else 0,
        max_staleness_versions=spec.policy.max_staleness_versions if bounded else None,
        at_work=_working_roles(spec),
    )


def _working_roles(spec: StageSpec) -> tuple[str, ...]:
    """Returns the roles working all the time in a stage."""
    if spec.serving is not None:
        return ()
    # A bench has no tasks of its own; of a half, the tasks are in the other file.
    explores = spec.kind == "both" or (spec.kind == "explore" and spec.taskset is not None)
    return (*(("explorer",) if explores else ()), *(("trainer",) if spec.kind != "explore" else ()))
