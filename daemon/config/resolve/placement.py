"""The GPUs that each worker of a stage has for its own: the guide's arithmetic, held against what the host has."""

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
from rftd.streams.spec.auxiliary import SERVICE
from rftd.streams.spec.spec import RolloutSpec, TrainerSpec
from rftd.streams.spec.split_submission import BOTH, EXPLORE
from rftd.workers.devices.host import Host

_CLUSTER: FieldPath = ("cluster", "gpu_per_node")
_ENGINES: FieldPath = ("explorer", "rollout_model", "engine_num")
_MODE: FieldPath = ("mode",)
_IN_TURN: Final = "is colocate, for one device that explorer and trainer have in turn"
_NOT_IN_TURN: Final = "write mode: both"
_RANKS: FieldPath = ("trainer", "engine_args", "ranks")
_PARALLEL: FieldPath = ("explorer", "rollout_model", "tensor_parallel_size")


def with_devices(
    experiment: Experiment, rollout: RolloutSpec, trainer: TrainerSpec, host: Host, notes: Notes
) -> tuple[RolloutSpec, TrainerSpec]:
    """The parts of a stage that explores, with the GPUs that each explorer and the trainer have for their own.

    0 of a worker means that it is given none, and sees what its machine shows.
    """
    per_engine = _gpus_of_engine(experiment, rollout, host)
    if host.clustered and host.gpus and per_engine > host.most_gpus:
        there = f"no node has more than {host.most_gpus}: a rollout engine is on one node"
        what = f"the engine takes {per_engine} GPUs, and {there}"
        notes.wrong(_PARALLEL, what, "write parallel sizes that fit on a node", Unsupported)
        return rollout, trainer
    if host.trainers is not None:
        return _apart(experiment, rollout, trainer, host, notes)
    trains = gpus_of_trainer(experiment, trainer, host)
    if not host.gpus or not (per_engine or trains):
        if not experiment.model.tinker.enable:  # it computes elsewhere, and leaves all of a cluster
            _check_slots(experiment, host, notes)
        return _given(rollout, per_engine), trainer
    # A teacher is part of the trainer, on its devices: it has no engine of its own.
    models = experiment.explorer.auxiliary_models
    shares = shares_of(
        experiment, host, per_engine=per_engine, auxiliary=models[1:] if trainer.teacher_path else models
    )
    if not _is_there(shares, host, notes):
        return rollout, trainer
    if experiment.mode == "colocate":
        if host.clustered:
            notes.wrong(_MODE, f"{_IN_TURN}, and each actor of Ray's has GPUs of its own", _NOT_IN_TURN, Unsupported)
        return _taking_turns(rollout, trainer, per_engine, trains, notes)
    if experiment.explorer.collect_only or experiment.mode in (BENCH, EXPLORE):  # another half has the trainer
        trains = 0
    if shares.left < trains:
        if trains > 1:
            _refuse_ranks(trains, f"{shares}: {max(shares.left, 0)} are left for them", notes)
            return rollout, trainer
        if shares.nodes or rollout.engine != "torch" or _has_own_gpus(experiment, models, host):
            _refuse(shares, notes)
        else:
            notes.warn(f"{_needed(shares, trains)}, and there is {host.named()}: they share it")
            return _given(rollout, per_engine), msgspec.structs.replace(trainer, devices=trains)
        return rollout, trainer
    # verl spreads over all that is left; torch trains on one, or on as many as its ranks.
    own = shares.left if trains and trainer.engine == "verl" else trains
    if own and own < shares.left:
        more = f"trainer.engine_args: {{device: cuda, ranks: {shares.left}}} would train on all of them"
        notes.warn(f"{shares}; {trainer.engine} trains on {own} of the {shares.left} that are left: {more}")
    return _given(rollout, per_engine), _on_gpus(trainer, own, notes)


def with_trainer_devices(experiment: Experiment, trainer: TrainerSpec, host: Host, notes: Notes) -> TrainerSpec:
    """The trainer of a stage without explorers, with the GPUs that it has for its own: verl all, torch's ranks theirs.

    0: it is given none, and sees what its machine shows.
    """
    trains = gpus_of_trainer(experiment, trainer, host)
    if not host.gpus or not trains:
        return trainer
    shares = shares_of(experiment, host, per_engine=0, auxiliary=())
    if not _is_there(shares, host, notes):
        return trainer
    own = shares.total if trainer.engine == "verl" else trains
    if trainer.engine == "verl":
        return _on_gpus(trainer, own, notes)
    if trains > shares.total:
        _refuse_ranks(trains, f"there are {shares.total}", notes)
    # An actor of Ray's sees no GPU but those that it was given.
    return msgspec.structs.replace(trainer, devices=trains if trains > 1 or host.clustered else 0)


def _apart(
    experiment: Experiment, rollout: RolloutSpec, trainer: TrainerSpec, host: Host, notes: Notes
) -> tuple[RolloutSpec, TrainerSpec]:
    """Rollouts and trainer where each has a host of its own: neither side takes a GPU from the other."""
    if experiment.mode == "colocate":
        what = f"{_IN_TURN}, and here explorers and trainers have launchers of their own"
        notes.wrong(_MODE, what, _NOT_IN_TURN, Unsupported)
        return rollout, trainer
    per_engine = _gpus_of_engine(experiment, rollout, host)
    models = experiment.explorer.auxiliary_models
    shares = shares_of(
        experiment, host, per_engine=per_engine, auxiliary=models[1:] if trainer.teacher_path else models
    )
    taken = shares.engines * shares.per_engine + shares.auxiliary
    if host.gpus and taken > len(host.gpus):
        what = f"explorers would take {taken} GPUs, and where they run there is {host.named()}"
        notes.wrong(_ENGINES, what, "lower it, or the parallel sizes of its engines")
    there = host.for_trainers
    own = gpus_of_trainer(experiment, trainer, there)
    if own and trainer.engine == "verl":
        own = shares.left if shares.nodes else len(there.gpus)
    if own < 0 or own > len(there.gpus):
        what = f"{shares}: {own} are left for the trainer, and where it runs there is {there.named()}"
        if shares.nodes:
            notes.wrong(_CLUSTER, what, "write what is there, or leave cluster out")
        else:
            _refuse_ranks(own, f"where it runs there is {there.named()}", notes)
    return _given(rollout, per_engine), _on_gpus(trainer, own, notes)


def _is_there(shares: GpuShares, host: Host, notes: Notes) -> bool:
    """True unless the file writes more GPUs than the host has, which is an issue then."""
    if not shares.nodes or shares.total <= len(host.gpus):
        return True
    what = f"{shares.nodes} x {shares.per_node} = {shares.total} GPUs, and the workers' machine has {host.named()}"
    notes.wrong(_CLUSTER, what, "write what is there, or leave cluster out")
    return False


def _on_gpus(trainer: TrainerSpec, own: int, notes: Notes) -> TrainerSpec:
    ranks = trainer.engine_args.get("ranks", own)
    if own and trainer.engine == "verl" and ranks != own:
        notes.warn(f"trainer.engine_args.ranks {ranks} has no effect: verl has one rank for each of its {own} GPUs")
    return msgspec.structs.replace(trainer, devices=own)


def _refuse_ranks(ranks: int, there: str, notes: Notes) -> None:
    what = f"is {ranks}, of which each needs a GPU of its own, and {there}"
    notes.wrong(_RANKS, what, "lower it, or write trainer.engine_args.device: cpu")


def _given(rollout: RolloutSpec, per_engine: int) -> RolloutSpec:
    return msgspec.structs.replace(rollout, needs=msgspec.structs.replace(rollout.needs, devices=per_engine))


def _gpus_of_engine(experiment: Experiment, rollout: RolloutSpec, host: Host) -> int:
    """GPUs that one explorer computes on."""
    if rollout.engine == "vllm":
        # On a host that nobody has seen, too: the launcher there gives as many.
        return 0 if rollout.needs.device == "cpu" else rollout.needs.parallel
    return int(rollout.engine == "torch" and computes_on_gpu(experiment, rollout.engine_args, host))


def gpus_of_trainer(experiment: Experiment, trainer: TrainerSpec, host: Host) -> int:
    """GPUs that the trainer must have: 1, or one for each rank of torch's."""
    if trainer.engine not in ("torch", "verl") or not computes_on_gpu(experiment, trainer.engine_args, host):
        return 0
    ranks = trainer.engine_args.get("ranks", 0)
    if trainer.engine == "verl" or not isinstance(ranks, int) or ranks <= 1:
        return 1
    # torch's ranks compute on GPUs only if that is written.
    return ranks if trainer.engine_args.get("device") == "cuda" else 0


def _taking_turns(
    rollout: RolloutSpec, trainer: TrainerSpec, per_engine: int, trains: int, notes: Notes
) -> tuple[RolloutSpec, TrainerSpec]:
    if per_engine > 1:
        what = f"the engine takes {per_engine} GPUs, and mode colocate is for one device that the trainer has in turn"
        notes.wrong(("explorer", "rollout_model", "tensor_parallel_size"), what, "write 1, or mode: both")
    if trains > 1:
        what = f"is {trains}, and mode colocate is for one device that the explorer has in turn"
        notes.wrong(_RANKS, what, "leave it out, or write mode: both")
    return rollout, trainer


def _has_own_gpus(experiment: Experiment, models: Iterable[AuxiliaryModel], host: Host) -> bool:
    """True if the engine of an auxiliary model has GPUs that it shares with nobody."""
    own = (model for model in models if model.engine_type != SERVICE)
    return any(auxiliary_engine(experiment, model, host).gpus for model in own)


def _refuse(shares: GpuShares, notes: Notes) -> None:
    where = _CLUSTER if shares.nodes else _ENGINES
    what = f"{shares}: {max(shares.left, 0)} are left for the trainer"
    fix = "lower explorer.rollout_model.engine_num or its parallel sizes, or let them take turns: mode: colocate"
    notes.wrong(where, what, fix)


def _needed(shares: GpuShares, trains: int) -> str:
    return f"explorers and trainer would take {shares.engines * shares.per_engine + shares.auxiliary + trains} GPUs"


def _check_slots(experiment: Experiment, host: Host, notes: Notes) -> None:
    """Without a GPU the cluster's counts are those of processes: says so, and refuses what leaves the trainer none."""
    shares = shares_of(experiment, host, per_engine=parallel_of(experiment.explorer.rollout_model), auxiliary=())
    explorers = shares.engines * shares.per_engine
    if not shares.nodes:
        return
    # The trainer of a half is the other submission's, and what is only collected or measured has none.
    alone = experiment.mode in (*BOTH, BENCH) or experiment.explorer.collect_only
    if explorers > shares.total if alone else shares.total > 1 and explorers >= shares.total:
        what = f"{shares.nodes} x {shares.per_node} = {shares.total} slots, and explorers take {explorers}"
        what += "" if alone else ": none is left for the trainer"
        notes.wrong(_CLUSTER, what, "raise it, or lower explorer.rollout_model.engine_num")
    elif host.seen and not host.gpus:
        notes.warn(
            f"no GPU: cluster {shares.nodes} x {shares.per_node} counts as {shares.total} process slots, "
            f"{shares.engines} for explorers, the trainer takes one"
        )
