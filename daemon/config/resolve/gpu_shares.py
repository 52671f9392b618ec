"""The GPUs of a cluster, shared out as the guide does: engines, auxiliary models, and the rest for the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rftd.daemon.config.resolve.auxiliary_engine import auxiliary_engine, parallel_of
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.explorer import RolloutModel
from rftd.streams.auxiliary import SERVICE
from rftd.workers.devices.host import Host


class GpuShares(NamedTuple):
    """The arithmetic of one stage."""

    nodes: int
    """0 where the file does not say."""
    per_node: int
    total: int
    engines: int
    per_engine: int
    """GPUs of one engine."""
    auxiliary: int
    """GPUs of the auxiliary models together."""

    @property
    def left(self) -> int:
        """GPUs for the trainer; below 0 where there are too few for the engines already."""
        return self.total - self.engines * self.per_engine - self.auxiliary

    def __str__(self) -> str:
        """The numbers in words."""
        have = f"{self.nodes} x {self.per_node} = {self.total}" if self.nodes else f"{self.total}"
        auxiliary = f" and auxiliary models {self.auxiliary}" if self.auxiliary else ""
        unit = "GPU" if self.total == 1 else "GPUs"
        taken = f"{self.engines} engines x {self.per_engine} take {self.engines * self.per_engine}"
        return f"{have} {unit}, of which {taken}{auxiliary}"


def shares_of(
    experiment: Experiment,
    host: Host,
    *,
    per_engine: int | None = None,
    auxiliary: Sequence[RolloutModel] | None = None,
) -> GpuShares:
    """The shares of the written cluster, else of what the host has.

    An engine takes `per_engine` GPUs, by default as many as its parallel sizes say; `auxiliary` are the models that
    have GPUs of their own, by default all that the file names.
    """
    nodes = experiment.cluster.node_num or 0
    per_node = experiment.cluster.gpu_per_node or 0
    written = bool(nodes and per_node)
    model = experiment.explorer.rollout_model
    beside = experiment.explorer.auxiliary_models if auxiliary is None else auxiliary
    return GpuShares(
        nodes=nodes if written else 0,
        per_node=per_node if written else 0,
        total=nodes * per_node if written else len(host.gpus),
        engines=model.engine_num,
        per_engine=parallel_of(model) if per_engine is None else per_engine,
        auxiliary=sum(gpus_beside(experiment, other, host) for other in beside),
    )


def gpus_beside(experiment: Experiment, model: RolloutModel, host: Host) -> int:
    """The GPUs of an auxiliary model: one engine in each explorer with vLLM on GPUs, else as many as the file counts.

    A service has its own elsewhere.
    """
    if model.engine_type == SERVICE:
        return 0
    on_gpus = auxiliary_engine(experiment, model, host).gpus
    return on_gpus * experiment.explorer.rollout_model.engine_num or model.engine_num * parallel_of(model)
