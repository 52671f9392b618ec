"""`resolve_pacing` turns `synchronizer` into a schedule and a policy; two modes have a schedule of their own."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

import msgspec

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Notes, WrongValue
from rftd.daemon.config.resolve.policy import resolve_policy
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import as_declared, as_section
from rftd.ops.errors import ConfigError
from rftd.ops.processors import ALL
from rftd.streams.log.bounds import LAST_INDEX
from rftd.streams.spec.schedule import needed_staleness
from rftd.streams.spec.spec import AlgorithmSpec, PolicySpec, RolloutSpec, StageSpec, TrainerSpec
from rftd.streams.spec.stage_tasks import is_queue
from rftd.streams.spec.synchronizer import Synchronizer
from rftd.workers.devices.host import Host
from rftd.workers.weights.registry import CHANNELS
from rftd.workers.weights.service import SERVICE

_SYNC: FieldPath = ("synchronizer",)
_NCCL_GPUS: Final = 2
"""NCCL refuses two processes on one GPU."""
_TURNS: Final = {
    "sync_method": "memory",
    "sync_style": "fixed",
    "sync_interval": 1,
    "explorer_sync_interval": None,
    "trainer_sync_interval": None,
    "sync_offset": 0,
}
"""Each explore step runs on the weights of the step before it, and waits for them."""


def resolve_pacing(
    experiment: Experiment, algorithm: AlgorithmSpec, batch: int, host: Host, notes: Notes
) -> tuple[Synchronizer, PolicySpec]:
    """The schedule of synchronisation, and the policy: how far explorers run ahead, how old an experience may be."""
    sync = as_declared(experiment.synchronizer, Synchronizer)
    sync = msgspec.structs.replace(sync, sync_method=_method(experiment, host, notes))
    fixed = sync.sync_style == "fixed"
    if experiment.deterministic and (not fixed or sync.sync_offset):
        field = (*_SYNC, "sync_offset" if fixed else "sync_style")
        what = "deterministic means that explorers wait for the trainer: sync_style fixed, sync_offset 0"
        notes.wrong(field, what, "write sync_style: fixed and sync_offset: 0, or deterministic: false")
    elif experiment.deterministic:
        notes.warn(
            f"deterministic: a task that is given up because of the machine changes the weights: a rollout that takes "
            f"longer than explorer.max_timeout ({experiment.explorer.max_timeout:g} s), or one whose explorers die, on "
            f"each of its attempts"
        )
    return sync, resolve_policy(experiment, sync, needed_staleness(sync), algorithm, batch, notes)


def sync_of_training(experiment: Experiment) -> Synchronizer:
    """The schedule of a stage that only trains: it publishes too, and weights at a service have no other channel."""
    return Synchronizer(sync_method=SERVICE if experiment.model.tinker.enable else "checkpoint")


def _method(experiment: Experiment, host: Host, notes: Notes) -> str:
    given = experiment.synchronizer
    interval = max(given.sync_interval, given.explorer_sync_interval or 1, given.trainer_sync_interval or 1)
    if given.memory_dir and not PurePosixPath(given.memory_dir).is_absolute():
        notes.wrong((*_SYNC, "memory_dir"), "must be an absolute path", "name a folder in memory, such as /dev/shm")
    # nccl is the guide's default, so a file that says nothing of it is no error here.
    if given.sync_method == "nccl" and (why := _no_nccl(experiment, host)):
        notes.warn(f"synchronizer.sync_method nccl: weights travel as checkpoint files: {why}")
        return "checkpoint"
    try:
        CHANNELS.check(given.sync_method)
    except ConfigError as error:
        notes.wrong((*_SYNC, "sync_method"), error.what, error.fix, WrongValue)
        return "checkpoint"
    if given.sync_method == SERVICE:
        if not experiment.model.tinker.enable:
            what = "is service, and no service trains"
            notes.wrong((*_SYNC, "sync_method"), what, "set model.tinker.enable: true, or write checkpoint")
        return given.sync_method
    # Memory is shared by the processes of one machine alone.
    if given.sync_method == "memory" and not host.is_one_machine:
        why = "explorers and trainer may be on two machines"
        notes.warn(f"synchronizer.sync_method memory: weights travel as checkpoint files: {why}")
        return "checkpoint"
    if given.sync_method == "memory" and experiment.mode in ("explore", "train"):
        notes.warn("the halves of an experiment may be on two machines: weights travel as checkpoint files")
        return "checkpoint"
    if given.sync_method != "checkpoint" and experiment.deterministic and interval > 1:
        # A rollout is pinned to its version, which a trainer that is taken up between two of them cannot make again.
        notes.warn(
            "deterministic with sync_interval above 1: weights travel as checkpoint files, which a reboot leaves"
        )
        return "checkpoint"
    return given.sync_method


def _no_nccl(experiment: Experiment, host: Host) -> str:
    """The reason why weights cannot go from GPU to GPU; empty if they can."""
    if host.trainers is not None:
        return "explorers and trainer have separate launchers, so whether their GPUs can reach each other is not known"
    if not host.gpus:
        return f"there is {host.named()}" if host.seen else "the GPUs where workers run are not known"
    if len(host.gpus) < _NCCL_GPUS:
        return f"trainer and explorers have {host.named()}, and nccl goes from one GPU to another"
    if experiment.mode != "both":
        return f"with mode {experiment.mode} trainer and explorers do not have a GPU each"
    arguments = (experiment.trainer.engine_args, experiment.explorer.rollout_model.extra_engine_args)
    if experiment.deterministic or any(each.get("device") == "cpu" for each in arguments):
        return "trainer or explorers compute on the CPU"
    # The guide's default would choose it for everybody, and it was tested between CPUs alone.
    if "sync_method" not in as_section(experiment.synchronizer).model_fields_set:
        return "it is not set, and nccl has only been tested between CPUs; to use it, set sync_method: nccl"
    return ""


def eval_interval_steps(experiment: Experiment, interval: int, notes: Notes) -> int:
    """`eval_interval` floored to a multiple of the sync interval, at least one; 0 stays 0."""
    asked = experiment.explorer.eval_interval
    floored = max(asked // interval, 1) * interval if asked else 0
    if floored != asked:
        notes.warn(f"explorer.eval_interval {asked} becomes {floored}, a multiple of the sync interval {interval}")
    return floored


def in_turns(experiment: Experiment, notes: Notes) -> Experiment:
    """The experiment as one device runs it: its schedule, its channel, and all threads for whose turn it is."""
    given = as_section(experiment.synchronizer)
    for name, value in _TURNS.items():
        if name in given.model_fields_set and (asked := getattr(given, name)) not in (value, None):
            notes.warn(f"mode colocate: synchronizer.{name} {asked} becomes {value}: explorer and trainer take turns")
    model = experiment.explorer.rollout_model
    if model.engine_num != 1:
        what = f"is {model.engine_num}, and mode colocate has one device"
        notes.wrong(("explorer", "rollout_model", "engine_num"), what, "write engine_num: 1, or mode: both")
    slots = (experiment.cluster.node_num or 0) * (experiment.cluster.gpu_per_node or 0)
    if slots > 1:
        what = f"{slots} slots, and mode colocate is for one device"
        notes.wrong(("cluster", "gpu_per_node"), what, "write mode: both, or a cluster of 1 x 1")
    # model_copy does not validate: the values are ours, and None stands for fields that were not given.
    return experiment.model_copy(update={"synchronizer": given.model_copy(update=_TURNS)})


def with_turns(experiment: Experiment, rollout: RolloutSpec, trainer: TrainerSpec) -> tuple[RolloutSpec, TrainerSpec]:
    """Both sides of a stage in turns. A deterministic one keeps its threads: the weights' bits depend on them."""
    if experiment.deterministic:
        return rollout, trainer
    if "threads" not in experiment.explorer.rollout_model.extra_engine_args:
        rollout = msgspec.structs.replace(rollout, threads=ALL)
    if "threads" not in experiment.trainer.engine_args:
        trainer = msgspec.structs.replace(trainer, threads=ALL)
    return rollout, trainer


def collects(experiment: Experiment, notes: Notes) -> bool:
    """True if the stage is to collect only."""
    if not experiment.explorer.collect_only:
        return False
    if experiment.mode not in ("explore", "serve"):
        what = f"is true, but mode is {experiment.mode}: what explorers do is trained on"
        notes.wrong(("explorer", "collect_only"), what, "write mode: explore, or collect_only: false")
        return False
    return True


def collecting(stage: StageSpec, notes: Notes) -> StageSpec:
    """The stage without its steps: tasks and explorers stay, and it ends when every task has been tried."""
    if stage.evals:
        notes.warn("explorer.collect_only: nothing is trained, so eval_tasksets are not evaluated")
    return msgspec.structs.replace(
        stage,
        kind="explore",
        total_steps=0,
        # Steps are counted in tasks here: nothing is trained that could count them otherwise.
        collect_groups=stage.total_steps * stage.batch_size or (LAST_INDEX if is_queue(stage) else 0),
        dataset=None,
        expert_rows=0,
        evals=(),
        eval_interval=0,
        eval_on_startup=False,
        # Nothing is ever trained, so nothing becomes stale: no bound, no capacity, and weights never change.
        policy=PolicySpec(min_group_members=stage.policy.min_group_members),
        synchronizer=Synchronizer(sync_method="checkpoint", sync_style="fully_async"),
    )
