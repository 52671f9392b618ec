"""Exclusive GPUs for each worker of a stage: the guide's arithmetic, checked against the host's GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Notes, Unsupported
from rftd.daemon.config.resolve.bench import BENCH
from rftd.daemon.config.resolve.gpu_shares import GpuShares, auxiliary_engine, parallel_of, shares_of
from rftd.daemon.config.resolve.rollout_engine import computes_on_gpu
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.explorer import AuxiliaryModel
from rftd.streams.spec.engines import SERVICE
from rftd.streams.spec.spec import RolloutSpec, TrainerSpec
from rftd.streams.spec.split_submission import BOTH, EXPLORE
from rftd.workers.devices.host import Host

_CLUSTER: FieldPath = ("cluster", "gpu_per_node")
"""Field of the GPUs per node."""
_ENGINES: FieldPath = ("explorer", "rollout_model", "engine_num")
"""Field of the number of rollout engines."""
_MODE: FieldPath = ("mode",)
"""Field of the mode."""
_COLOCATE_PROBLEM: Final = "is colocate, for one device used alternately by explorer and trainer"
"""Problem of mode colocate on several devices."""
_COLOCATE_FIX: Final = "write mode: both"
"""Advice for mode colocate on several devices."""
_RANKS: FieldPath = ("trainer", "engine_args", "ranks")
"""Field of the trainer's ranks."""
_PARALLEL: FieldPath = ("explorer", "rollout_model", "tensor_parallel_size")
"""Field of an engine's GPUs."""


def with_devices(
    experiment: Experiment, rollout: RolloutSpec, trainer: TrainerSpec, host: Host, notes: Notes
) -> tuple[RolloutSpec, TrainerSpec]:
    """Returns explorers and trainer of a stage with the numbers of GPUs reserved for each worker.

    0 means no reservation: the worker uses the GPUs visible on its machine.
    """
    per_engine = _gpus_of_engine(experiment, rollout, host)
    if host.clustered and host.gpus and per_engine > host.most_gpus:
        limit = f"no node has more than {host.most_gpus}: a rollout engine runs on one node"
        problem = f"the engine needs {per_engine} GPUs, but {limit}"
        notes.wrong(_PARALLEL, problem, "write parallel sizes that fit on a node", Unsupported)
        return rollout, trainer
    if host.trainers is not None:
        return _with_separate_hosts(experiment, rollout, trainer, host, notes)
    trains = gpus_of_trainer(experiment, trainer, host)
    if not host.gpus or not (per_engine or trains):
        if not experiment.model.tinker.enable:  # a service computes elsewhere, and uses no GPUs of a cluster
            _check_slots(experiment, host, notes)
        return _with_engine_gpus(rollout, per_engine), trainer
    # A teacher is part of the trainer, on the trainer's devices, without a separate engine.
    models = experiment.explorer.auxiliary_models
    shares = shares_of(
        experiment, host, per_engine=per_engine, auxiliary=models[1:] if trainer.teacher_path else models
    )
    if not _is_there(shares, host, notes):
        return rollout, trainer
    if experiment.mode == "colocate":
        if host.clustered:
            notes.wrong(
                _MODE, f"{_COLOCATE_PROBLEM}, but each Ray actor has exclusive GPUs", _COLOCATE_FIX, Unsupported
            )
        return _check_colocated(rollout, trainer, per_engine, trains, notes)
    if experiment.explorer.collect_only or experiment.mode in (BENCH, EXPLORE):  # another submission covers the trainer
        trains = 0
    if shares.left < trains:
        if trains > 1:
            _refuse_ranks(trains, f"{shares}: {max(shares.left, 0)} are left for them", notes)
            return rollout, trainer
        if shares.nodes or rollout.engine != "torch" or _has_own_gpus(experiment, models, host):
            _refuse(shares, notes)
        else:
            notes.warn(f"{_needed(shares, trains)}, and there is {host.named()}: it is shared")
            return _with_engine_gpus(rollout, per_engine), msgspec.structs.replace(trainer, devices=trains)
        return rollout, trainer
    # verl uses all remaining GPUs; torch uses one, or one per rank.
    trainer_gpus = shares.left if trains and trainer.engine == "verl" else trains
    if trainer_gpus and trainer_gpus < shares.left:
        more = f"trainer.engine_args: {{device: cuda, ranks: {shares.left}}} would use all of them"
        notes.warn(f"{shares}; {trainer.engine} trains on {trainer_gpus} of the {shares.left} remaining GPUs:  {more}")
    return _with_engine_gpus(rollout, per_engine), _on_gpus(trainer, trainer_gpus, notes)


def with_trainer_devices(experiment: Experiment, trainer: TrainerSpec, host: Host, notes: Notes) -> TrainerSpec:
    """Returns the trainer of a stage without explorers with its number of GPUs: all for verl, one per rank for torch.

    0 means no reservation: the trainer uses the GPUs visible on its machine.
    """
    trains = gpus_of_trainer(experiment, trainer, host)
    if not host.gpus or not trains:
        return trainer
    shares = shares_of(experiment, host, per_engine=0, auxiliary=())
    if not _is_there(shares, host, notes):
        return trainer
    trainer_gpus = shares.total if trainer.engine == "verl" else trains
    if trainer.engine == "verl":
        return _on_gpus(trainer, trainer_gpus, notes)
    if trains > shares.total:
        _refuse_ranks(trains, f"there are {shares.total}", notes)
    # A Ray actor sees only the GPUs assigned to it.
    return msgspec.structs.replace(trainer, devices=trains if trains > 1 or host.clustered else 0)


def _with_separate_hosts(
    experiment: Experiment, rollout: RolloutSpec, trainer: TrainerSpec, host: Host, notes: Notes
) -> tuple[RolloutSpec, TrainerSpec]:
    """Assigns GPUs to rollouts and trainer on separate hosts, without competition."""
    if experiment.mode == "colocate":
        problem = f"{_COLOCATE_PROBLEM}, but explorers and trainers have separate launchers here"
        notes.wrong(_MODE, problem, _COLOCATE_FIX, Unsupported)
        return rollout, trainer
    per_engine = _gpus_of_engine(experiment, rollout, host)
    models = experiment.explorer.auxiliary_models
    shares = shares_of(
        experiment, host, per_engine=per_engine, auxiliary=models[1:] if trainer.teacher_path else models
    )
    explorer_gpus = shares.engines * shares.per_engine + shares.auxiliary
    if host.gpus and explorer_gpus > len(host.gpus):
        problem = f"explorers would need {explorer_gpus} GPUs, but their host has {host.named()}"
        notes.wrong(_ENGINES, problem, "lower it, or the parallel sizes of the engines")
    trainer_host = host.for_trainers
    trainer_gpus = gpus_of_trainer(experiment, trainer, trainer_host)
    if trainer_gpus and trainer.engine == "verl":
        trainer_gpus = shares.left if shares.nodes else len(trainer_host.gpus)
    if trainer_gpus < 0 or trainer_gpus > len(trainer_host.gpus):
        problem = f"{shares}: {trainer_gpus} are left for the trainer, but its host has {trainer_host.named()}"
        if shares.nodes:
            notes.wrong(_CLUSTER, problem, "write the available number, or leave cluster out")
        else:
            _refuse_ranks(trainer_gpus, f"its host has {trainer_host.named()}", notes)
    return _with_engine_gpus(rollout, per_engine), _on_gpus(trainer, trainer_gpus, notes)


def _is_there(shares: GpuShares, host: Host, notes: Notes) -> bool:
    """True if the file's cluster has no more GPUs than the host; otherwise adds an issue."""
    if not shares.nodes or shares.total <= len(host.gpus):
        return True
    problem = f"{shares.nodes} x {shares.per_node} = {shares.total} GPUs, but the workers' machine has {host.named()}"
    notes.wrong(_CLUSTER, problem, "write the available number, or leave cluster out")
    return False


def _on_gpus(trainer: TrainerSpec, gpu_count: int, notes: Notes) -> TrainerSpec:
    """Returns the trainer with its GPUs; warns of another number of ranks."""
    ranks = trainer.engine_args.get("ranks", gpu_count)
    if gpu_count and trainer.engine == "verl" and ranks != gpu_count:
        notes.warn(f"trainer.engine_args.ranks {ranks} has no effect: verl has one rank per GPU ({gpu_count})")
    return msgspec.structs.replace(trainer, devices=gpu_count)


def _refuse_ranks(ranks: int, reason: str, notes: Notes) -> None:
    """Adds an issue for ranks without a GPU for each."""
    problem = f"is {ranks}, and each rank needs a separate GPU, but {reason}"
    notes.wrong(_RANKS, problem, "lower it, or write trainer.engine_args.device: cpu")


def _with_engine_gpus(rollout: RolloutSpec, per_engine: int) -> RolloutSpec:
    """Returns the explorers with `per_engine` GPUs for each engine."""
    return msgspec.structs.replace(rollout, needs=msgspec.structs.replace(rollout.needs, devices=per_engine))


def _gpus_of_engine(experiment: Experiment, rollout: RolloutSpec, host: Host) -> int:
    """Returns the GPUs used by one explorer."""
    if rollout.engine == "vllm":
        # Also on an uninspected host: the launcher there assigns the number.
        return 0 if rollout.needs.device == "cpu" else rollout.needs.parallel
    return int(rollout.engine == "torch" and computes_on_gpu(experiment, rollout.engine_args, host))


def gpus_of_trainer(experiment: Experiment, trainer: TrainerSpec, host: Host) -> int:
    """Returns the GPUs required by the trainer: 1, or one per torch rank."""
    if trainer.engine not in ("torch", "verl") or not computes_on_gpu(experiment, trainer.engine_args, host):
        return 0
    ranks = trainer.engine_args.get("ranks", 0)
    if trainer.engine == "verl" or not isinstance(ranks, int) or ranks <= 1:
        return 1
    # torch's ranks use GPUs only on explicit request.
    return ranks if trainer.engine_args.get("device") == "cuda" else 0


def _check_colocated(
    rollout: RolloutSpec, trainer: TrainerSpec, per_engine: int, trains: int, notes: Notes
) -> tuple[RolloutSpec, TrainerSpec]:
    """Refuses several GPUs in mode colocate; returns both sides without reserved GPUs."""
    if per_engine > 1:
        problem = f"the engine needs {per_engine} GPUs, but mode colocate uses one device, shared with the trainer"
        notes.wrong(("explorer", "rollout_model", "tensor_parallel_size"), problem, "write 1, or mode: both")
    if trains > 1:
        problem = f"is {trains}, but mode colocate uses one device, shared with the explorer"
        notes.wrong(_RANKS, problem, "leave it out, or write mode: both")
    return rollout, trainer


def _has_own_gpus(experiment: Experiment, models: Iterable[AuxiliaryModel], host: Host) -> bool:
    """True if the engine of an auxiliary model has exclusive GPUs."""
    local_models = (model for model in models if model.engine_type != SERVICE)
    return any(auxiliary_engine(experiment, model, host).gpus for model in local_models)


def _refuse(shares: GpuShares, notes: Notes) -> None:
    """Adds an issue for a division that leaves too few GPUs for the trainer."""
    where = _CLUSTER if shares.nodes else _ENGINES
    problem = f"{shares}: {max(shares.left, 0)} are left for the trainer"
    fix = "lower explorer.rollout_model.engine_num or its parallel sizes, or alternate on one device: mode: colocate"
    notes.wrong(where, problem, fix)


def _needed(shares: GpuShares, trains: int) -> str:
    """Returns the text naming the GPUs needed by explorers and trainer together."""
    return f"explorers and trainer would need {shares.engines * shares.per_engine + shares.auxiliary + trains} GPUs"


def _check_slots(experiment: Experiment, host: Host, notes: Notes) -> None:
    """Without GPUs, a cluster's counts are process slots: warns, and refuses counts without a slot for the trainer."""
    shares = shares_of(experiment, host, per_engine=parallel_of(experiment.explorer.rollout_model), auxiliary=())
    explorers = shares.engines * shares.per_engine
    if not shares.nodes:
        return
    # The trainer of a half is in the other submission, and collecting or benchmarking needs no trainer.
    alone = experiment.mode in (*BOTH, BENCH) or experiment.explorer.collect_only
    if explorers > shares.total if alone else shares.total > 1 and explorers >= shares.total:
        problem = f"{shares.nodes} x {shares.per_node} = {shares.total} slots, but explorers need {explorers}"
        problem += "" if alone else ", and the trainer needs one"
        notes.wrong(_CLUSTER, problem, "raise it, or lower explorer.rollout_model.engine_num")
    elif host.seen and not host.gpus:
        notes.warn(
            f"no GPU: cluster {shares.nodes} x {shares.per_node} counts as {shares.total} process slots, "
            f"{shares.engines} for explorers, the trainer takes one"
        )
