"""The engine of an auxiliary model: the one that is written, else vLLM where there are GPUs enough, else torch."""

from __future__ import annotations

from typing import NamedTuple

from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.explorer import RolloutModel
from rftd.streams.auxiliary import SERVICE
from rftd.workers.devices.engine_build import NoBuild, vllm_build
from rftd.workers.devices.host import Host


class AuxiliaryEngineChoice(NamedTuple):
    """The engine of an auxiliary model, and the GPUs that it has for its own in each explorer."""

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
    gpus_per_explorer = parallel_of(rollouts) + sum(map(parallel_of, beside))
    written = (experiment.cluster.node_num or 0) * (experiment.cluster.gpu_per_node or 0)
    return rollouts.engine_num * gpus_per_explorer + int(host.trainers is None) <= (written or len(host.gpus))


def parallel_of(model: RolloutModel) -> int:
    """The GPUs of one engine, by its parallel sizes."""
    return model.tensor_parallel_size * model.pipeline_parallel_size * model.data_parallel_size
