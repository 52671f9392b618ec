"""`resolve_pacing` turns `synchronizer` into a schedule and a policy; two modes have separate schedules."""

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
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import AlgorithmSpec, PolicySpec, RolloutSpec, StageSpec, TrainerSpec
from rftd.streams.spec.stage_tasks import is_queue
from rftd.workers.devices.host import Host
from rftd.workers.weights.registry import CHANNELS
from rftd.workers.weights.service import SERVICE

_SYNC: FieldPath = ("synchronizer",)
"""Section of the synchronisation."""
_NCCL_GPUS: Final = 2
"""Minimum number of GPUs: NCCL refuses two processes on one GPU."""
_TURNS: Final = {
    "sync_method": "memory",
    "sync_style": "fixed",
    "sync_interval": 1,
    "explorer_sync_interval": None,
    "trainer_sync_interval": None,
    "sync_offset": 0,
}
"""Settings for explorers and trainer alternating on one device: each explore step waits for the previous step's
weights.
"""


def resolve_pacing(
    experiment: Experiment, algorithm: AlgorithmSpec, batch: int, host: Host, notes: Notes
) -> tuple[Synchronizer, PolicySpec]:
    """Returns the synchronisation schedule, and the policy limiting how far explorers run ahead and how old experiences
    may be.
    """
    sync = as_declared(experiment.synchronizer, Synchronizer)
    sync = msgspec.structs.replace(sync, sync_method=_method(experiment, host, notes))
    fixed = sync.sync_style == "fixed"
    if experiment.deterministic and (not fixed or sync.sync_offset):
        field = (*_SYNC, "sync_offset" if fixed else "sync_style")
        problem = "deterministic requires explorers to wait for the trainer: sync_style fixed, sync_offset 0"
        notes.wrong(field, problem, "write sync_style: fixed and sync_offset: 0, or deterministic: false")
    elif experiment.deterministic:
        notes.warn(
            f"deterministic: a task given up because of the machine changes the weights: a rollout that takes "
            f"longer than explorer.max_timeout ({experiment.explorer.max_timeout:g} s), or one whose explorers die, on "
            f"each of its attempts"
        )
    return sync, resolve_policy(experiment, sync, needed_staleness(sync), algorithm, batch, notes)


def sync_of_training(experiment: Experiment) -> Synchronizer:
    """Returns the schedule of a stage without rollouts, in which weights are still published."""
    return Synchronizer(sync_method=SERVICE if experiment.model.tinker.enable else "checkpoint")


def _method(experiment: Experiment, host: Host, notes: Notes) -> str:
    """Returns the channel of the weights: the file's, or checkpoint files where NCCL or shared memory is impossible, or
    a resumed deterministic run could not recreate a version; unfit settings are issues.
    """
    section = experiment.synchronizer
    interval = max(section.sync_interval, section.explorer_sync_interval or 1, section.trainer_sync_interval or 1)
    if section.memory_dir and not PurePosixPath(section.memory_dir).is_absolute():
        notes.wrong((*_SYNC, "memory_dir"), "must be an absolute path", "name a folder in memory, such as /dev/shm")
    # nccl is the guide's default, so an unset field is not an error here.
    if section.sync_method == "nccl" and (why := _no_nccl(experiment, host)):
        notes.warn(f"synchronizer.sync_method nccl: weights travel as checkpoint files: {why}")
        return "checkpoint"
    try:
        CHANNELS.check(section.sync_method)
    except ConfigError as error:
        notes.wrong((*_SYNC, "sync_method"), error.what, error.fix, WrongValue)
        return "checkpoint"
    if section.sync_method == SERVICE:
        if not experiment.model.tinker.enable:
            problem = "is service, but no service trains"
            notes.wrong((*_SYNC, "sync_method"), problem, "set model.tinker.enable: true, or write checkpoint")
        return section.sync_method
    # Memory is shared only by the processes of one machine.
    if section.sync_method == "memory" and not host.is_one_machine:
        why = "explorers and trainer may be on two machines"
        notes.warn(f"synchronizer.sync_method memory: weights travel as checkpoint files: {why}")
        return "checkpoint"
    if section.sync_method == "memory" and experiment.mode in ("explore", "train"):
        notes.warn("the halves of an experiment may be on two machines: weights travel as checkpoint files")
        return "checkpoint"
    if section.sync_method != "checkpoint" and experiment.deterministic and interval > 1:
        # A rollout is pinned to one version; a trainer resumed between two checkpoints cannot recreate the version.
        notes.warn(
            "deterministic with sync_interval above 1: weights travel as checkpoint files, which survive a reboot"
        )
        return "checkpoint"
    return section.sync_method


def _no_nccl(experiment: Experiment, host: Host) -> str:
    """Returns the reason why weights cannot go from GPU to GPU; empty if possible."""
    if host.trainers is not None:
        return "explorers and trainer have separate launchers, so whether their GPUs can reach each other is not known"
    if not host.gpus:
        return f"there is {host.named()}" if host.seen else "the GPUs where workers run are not known"
    if len(host.gpus) < _NCCL_GPUS:
        return f"trainer and explorers have {host.named()}, but nccl needs two GPUs"
    if experiment.mode != "both":
        return f"with mode {experiment.mode} trainer and explorers do not have a GPU each"
    arguments = (experiment.trainer.engine_args, experiment.explorer.rollout_model.extra_engine_args)
    if experiment.deterministic or any(engine_args.get("device") == "cpu" for engine_args in arguments):
        return "trainer or explorers compute on the CPU"
    # nccl as the guide's default would affect every file, although tested only between CPUs.
    if "sync_method" not in as_section(experiment.synchronizer).model_fields_set:
        return "it is not set, and nccl has only been tested between CPUs; to use it, set sync_method: nccl"
    return ""


def eval_interval_steps(experiment: Experiment, interval: int, notes: Notes) -> int:
    """Returns `eval_interval` rounded down to a multiple of the sync `interval`, at least one interval; 0 (never) stays
    0.
    """
    requested = experiment.explorer.eval_interval
    floored = max(requested // interval, 1) * interval if requested else 0
    if floored != requested:
        notes.warn(f"explorer.eval_interval {requested} becomes {floored}, a multiple of the sync interval {interval}")
    return floored


def as_colocated(experiment: Experiment, notes: Notes) -> Experiment:
    """Returns the experiment for explorers and trainer alternating on one device: schedule, channel, and all threads
    for both.
    """
    sync = as_section(experiment.synchronizer)
    for name, required in _TURNS.items():
        if name in sync.model_fields_set and (requested := getattr(sync, name)) not in (required, None):
            notes.warn(
                f"mode colocate: synchronizer.{name} {requested} becomes {required}: explorer and trainer take turns"
            )
    model = experiment.explorer.rollout_model
    if model.engine_num != 1:
        problem = f"is {model.engine_num}, but mode colocate has one device"
        notes.wrong(("explorer", "rollout_model", "engine_num"), problem, "write engine_num: 1, or mode: both")
    slots = (experiment.cluster.node_num or 0) * (experiment.cluster.gpu_per_node or 0)
    if slots > 1:
        problem = f"{slots} slots, but mode colocate uses one device"
        notes.wrong(("cluster", "gpu_per_node"), problem, "write mode: both, or a cluster of 1 x 1")
    # model_copy does not validate: the values are constants of this module, and None stands for unset fields.
    return experiment.model_copy(update={"synchronizer": sync.model_copy(update=_TURNS)})


def with_all_threads(
    experiment: Experiment, rollout: RolloutSpec, trainer: TrainerSpec
) -> tuple[RolloutSpec, TrainerSpec]:
    """Returns both sides of a stage that alternate on one device, each with all threads.

    A deterministic stage keeps its threads: the weights' bits depend on them.
    """
    if experiment.deterministic:
        return rollout, trainer
    if "threads" not in experiment.explorer.rollout_model.extra_engine_args:
        rollout = msgspec.structs.replace(rollout, threads=ALL)
    if "threads" not in experiment.trainer.engine_args:
        trainer = msgspec.structs.replace(trainer, threads=ALL)
    return rollout, trainer


def only_collects(experiment: Experiment, notes: Notes) -> bool:
    """True if the stage only collects experiences (`explorer.collect_only`), which is refused in modes with
    training.
    """
    if not experiment.explorer.collect_only:
        return False
    if experiment.mode not in ("explore", "serve"):
        problem = f"is true, but mode is {experiment.mode}: rollouts are trained"
        notes.wrong(("explorer", "collect_only"), problem, "write mode: explore, or collect_only: false")
        return False
    return True


def without_training(stage: StageSpec, notes: Notes) -> StageSpec:
    """Returns the stage without training steps: it ends after its last task."""
    if stage.evals:
        notes.warn("explorer.collect_only: nothing is trained, so eval_tasksets are not evaluated")
    return msgspec.structs.replace(
        stage,
        kind="explore",
        total_steps=0,
        # Steps are counted in tasks here, because no training step could count them.
        collect_groups=stage.total_steps * stage.batch_size or (LAST_INDEX if is_queue(stage) else 0),
        dataset=None,
        expert_rows=0,
        evals=(),
        eval_interval=0,
        eval_on_startup=False,
        # Without training no experience becomes stale: no bound, no capacity, and weights never change.
        policy=PolicySpec(min_group_members=stage.policy.min_group_members),
        synchronizer=Synchronizer(sync_method="checkpoint", sync_style="fully_async"),
    )
