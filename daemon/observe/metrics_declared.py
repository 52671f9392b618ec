"""`Declared`: the part of an experiment's specification that its metrics are labelled with and held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from rftd.daemon.run.supervisor.worker_orders import worker_orders
from rftd.ops.metrics import shortened
from rftd.streams.spec.spec import ExperimentSpec, StageSpec


@dataclass(frozen=True, slots=True)
class DeclaredStage:
    """One stage."""

    taskset: str
    """The name of its taskset as a label; empty if it has none."""
    method: str
    """The weight channel; empty where nobody loads what it trains."""
    capacity: int
    """The most experiences that wait or rest at once; 0: any number."""
    max_staleness_versions: int | None
    """The oldest experience that a batch may hold; None without such a bound."""
    at_work: tuple[str, ...]
    """The roles that finish work in it, whatever others do: who serves strangers, or evaluates only, waits for long."""


@dataclass(frozen=True, slots=True)
class Declared:
    """One experiment."""

    stages: tuple[DeclaredStage, ...]
    accelerators: Mapping[str, int]
    """The GPUs that one worker holds, by role; 0: none."""

    def stage(self, number: int) -> DeclaredStage | None:
        """The stage of this number; None where there is none."""
        return self.stages[number] if 0 <= number < len(self.stages) else None

    @property
    def methods(self) -> tuple[str, ...]:
        """The weight channels of its stages, each once."""
        return tuple(dict.fromkeys(stage.method for stage in self.stages if stage.method))


def declared_by(id: UUID, spec: ExperimentSpec) -> Declared:
    """The metrics' own part of the specification of experiment `id`."""
    # Without a stage, which no program of ours writes, it wants no workers.
    orders = worker_orders(id, spec, 0) if spec.stages else ()
    return Declared(tuple(map(_stage, spec.stages)), {order.role: order.devices for order in orders})


def _stage(spec: StageSpec) -> DeclaredStage:
    explores = spec.kind != "train"
    bounded = explores and spec.policy.bounded
    return DeclaredStage(
        taskset=shortened(spec.taskset.name) if spec.taskset is not None else "",
        method=spec.synchronizer.sync_method if explores else "",
        capacity=spec.policy.capacity if explores else 0,
        max_staleness_versions=spec.policy.max_staleness_versions if bounded else None,
        at_work=_at_work(spec),
    )


def _at_work(spec: StageSpec) -> tuple[str, ...]:
    if spec.serving is not None:
        return ()
    # A bench has no tasks of its own; of a half, the tasks are in the other file.
    explores = spec.kind == "both" or (spec.kind == "explore" and spec.taskset is not None)
    return (*(("explorer",) if explores else ()), *(("trainer",) if spec.kind != "explore" else ()))
