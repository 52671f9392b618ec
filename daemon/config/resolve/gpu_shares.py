"""The guide's division of a cluster's GPUs, and the resulting engine of an auxiliary model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.explorer import RolloutModel
from rftd.streams.spec.engines import SERVICE
from rftd.workers.devices.engine_build import NoBuild, vllm_build
from rftd.workers.devices.host import Host


class GpuShares(NamedTuple):
    """Numbers of GPUs in one stage: of the cluster, of rollout engines, of auxiliary models."""

    nodes: int
    """Number of nodes; 0 if not set in the file."""
    per_node: int
    """GPUs of each node."""
    total: int
    """GPUs of the cluster or the host."""
    engines: int
    """Number of rollout engines."""
    per_engine: int
    """GPUs of one engine."""
    auxiliary: int
    """GPUs of all auxiliary models together."""

    @property
    def left(self) -> int:
        """Number of GPUs for the trainer; negative if the engines need more than available."""
        return self.total - self.engines * self.per_engine - self.auxiliary

    def __str__(self) -> str:
        """Returns the division as text for messages."""
        have = f"{self.nodes} x {self.per_node} = {self.total}" if self.nodes else f"{self.total}"
        auxiliary = f" and auxiliary models {self.auxiliary}" if self.auxiliary else ""
        unit = "GPU" if self.total == 1 else "GPUs"
        usage = f"{self.engines} engines x {self.per_engine} take {self.engines * self.per_engine}"
        return f"{have} {unit}, of which {usage}{auxiliary}"


def shares_of(
    experiment: Experiment,
    host: Host,
    *,
    per_engine: int | None = None,
    auxiliary: Sequence[RolloutModel] | None = None,
) -> GpuShares:
    """Returns how the guide divides the cluster set in the file, or otherwise the host's GPUs.

    An engine needs `per_engine` GPUs, by default the product of the parallel sizes; `auxiliary` are the models with
    dedicated GPUs, by default all models of the file.
    """
    nodes = experiment.cluster.node_num or 0
    per_node = experiment.cluster.gpu_per_node or 0
    is_set = bool(nodes and per_node)
    model = experiment.explorer.rollout_model
    beside = experiment.explorer.auxiliary_models if auxiliary is None else auxiliary
    return GpuShares(
        nodes=nodes if is_set else 0,
        per_node=per_node if is_set else 0,
        total=nodes * per_node if is_set else len(host.gpus),
        engines=model.engine_num,
        per_engine=parallel_of(model) if per_engine is None else per_engine,
        auxiliary=sum(auxiliary_gpus(experiment, auxiliary_model, host) for auxiliary_model in beside),
    )


def auxiliary_gpus(experiment: Experiment, model: RolloutModel, host: Host) -> int:
    """Returns the number of GPUs reserved for an auxiliary model: of its engines if vLLM runs them, otherwise as in the
    file.

    0 for a service.
    """
    if model.engine_type == SERVICE:
        return 0
    on_gpus = auxiliary_engine(experiment, model, host).gpus
    explorers = experiment.explorer.rollout_model.engine_num
    return on_gpus * explorers * engines_per_explorer(experiment, model) or model.engine_num * parallel_of(model)


def engines_per_explorer(experiment: Experiment, model: RolloutModel) -> int:
    """Returns the number of an auxiliary model's engines in each explorer: `engine_num` divided by the explorers,
    rounded up.
    """
    return -(-model.engine_num // experiment.explorer.rollout_model.engine_num)


class AuxiliaryEngineChoice(NamedTuple):
    """Engine of an auxiliary model, with the number of GPUs reserved for each engine."""

    engine: str
    """Name of the engine."""
    gpus: int = 0
    """GPUs reserved for each engine."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: chosen by the engine."""


def auxiliary_engine(experiment: Experiment, model: RolloutModel, host: Host) -> AuxiliaryEngineChoice:
    """Returns the engine that runs an auxiliary model; not for a model at a service."""
    if "engine_type" in model.model_fields_set:
        return _engine_as_written(model, host)
    return AuxiliaryEngineChoice("vllm", parallel_of(model), "cuda") if _fits(experiment, host) else _TORCH


_TORCH = AuxiliaryEngineChoice("torch")
"""torch, without reserved GPUs."""


def _engine_as_written(model: RolloutModel, host: Host) -> AuxiliaryEngineChoice:
    """Returns the engine set in the file, on the device available for it."""
    if model.engine_type != "vllm":
        return AuxiliaryEngineChoice(model.engine_type)
    build = vllm_build(host)
    if not host.seen:
        # Decided by the launcher of the explorers: without GPUs it assigns none.
        return AuxiliaryEngineChoice("vllm", parallel_of(model))
    if isinstance(build, NoBuild) or build.device != "cuda":
        return AuxiliaryEngineChoice("vllm", device="cpu")
    return AuxiliaryEngineChoice("vllm", parallel_of(model), "cuda")


def _fits(experiment: Experiment, host: Host) -> bool:
    """True if the host has vLLM for GPUs, and enough GPUs for every engine and a trainer."""
    build = vllm_build(host)
    if isinstance(build, NoBuild) or build.device != "cuda":
        return False
    if experiment.deterministic or experiment.mode == "colocate":
        return False
    rollouts = experiment.explorer.rollout_model
    beside = [model for model in experiment.explorer.auxiliary_models if model.engine_type != SERVICE]
    gpus_per_explorer = parallel_of(rollouts) + sum(
        parallel_of(model) * engines_per_explorer(experiment, model) for model in beside
    )
    configured = (experiment.cluster.node_num or 0) * (experiment.cluster.gpu_per_node or 0)
    return rollouts.engine_num * gpus_per_explorer + int(host.trainers is None) <= (configured or len(host.gpus))


def parallel_of(model: RolloutModel) -> int:
    """Returns the number of GPUs of one engine: the product of its parallel sizes."""
    return model.tensor_parallel_size * model.pipeline_parallel_size * model.data_parallel_size
