"""The GPUs of a cluster as the guide shares them, and the engine that an auxiliary model has with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.explorer import RolloutModel
from rftd.streams.spec.auxiliary import SERVICE
from rftd.workers.devices.engine_build import NoBuild, vllm_build
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
    """The GPUs of an auxiliary model: those of its engines with vLLM on GPUs, else as many as the file counts.

    A service has its own elsewhere.
    """
    if model.engine_type == SERVICE:
        return 0
    on_gpus = auxiliary_engine(experiment, model, host).gpus
    explorers = experiment.explorer.rollout_model.engine_num
    return on_gpus * explorers * engines_per_explorer(experiment, model) or model.engine_num * parallel_of(model)


def engines_per_explorer(experiment: Experiment, model: RolloutModel) -> int:
    """The engines of an auxiliary model in each explorer: `engine_num` over all explorers, rounded up."""
    return -(-model.engine_num // experiment.explorer.rollout_model.engine_num)


class AuxiliaryEngineChoice(NamedTuple):
    """The engine of an auxiliary model, and the GPUs of one such engine."""

    engine: str
    gpus: int = 0
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: the engine sees for itself."""


def auxiliary_engine(experiment: Experiment, model: RolloutModel, host: Host) -> AuxiliaryEngineChoice:
    """The engine of a model that no service has."""
    if "engine_type" in model.model_fields_set:
        return _written(model, host)
    return AuxiliaryEngineChoice("vllm", parallel_of(model), "cuda") if _fits(experiment, host) else _TORCH


_TORCH = AuxiliaryEngineChoice("torch")


def _written(model: RolloutModel, host: Host) -> AuxiliaryEngineChoice:
    if model.engine_type != "vllm":
        return AuxiliaryEngineChoice(model.engine_type)
    build = vllm_build(host)
    if not host.seen:
        # Whoever starts the explorers looks: a launcher without GPUs gives none.
        return AuxiliaryEngineChoice("vllm", parallel_of(model))
    if isinstance(build, NoBuild) or build.device != "cuda":
        return AuxiliaryEngineChoice("vllm", device="cpu")
    return AuxiliaryEngineChoice("vllm", parallel_of(model), "cuda")


def _fits(experiment: Experiment, host: Host) -> bool:
    """True if the host has vLLM for GPUs, and enough of them for every engine and a trainer."""
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
    written = (experiment.cluster.node_num or 0) * (experiment.cluster.gpu_per_node or 0)
    return rollouts.engine_num * gpus_per_explorer + int(host.trainers is None) <= (written or len(host.gpus))


def parallel_of(model: RolloutModel) -> int:
    """The GPUs of one engine, by its parallel sizes."""
    return model.tensor_parallel_size * model.pipeline_parallel_size * model.data_parallel_size
