"""`resolve_stage` completes one stage."""

from __future__ import annotations

from pathlib import PurePosixPath

from rftd.daemon.config.issue import Notes, WrongValue
from rftd.daemon.config.resolve.algorithm import find_algorithm, resolve_algorithm
from rftd.daemon.config.resolve.auxiliary import resolve_auxiliary
from rftd.daemon.config.resolve.bench import BENCH, answers_by_service, as_benched, as_one_evaluation
from rftd.daemon.config.resolve.by_evaluation import with_decisions
from rftd.daemon.config.resolve.explorer import resolve_rollout, schedule_rollouts
from rftd.daemon.config.resolve.model import LengthLimits, as_explored, derive_lengths, resolve_lora, with_answer_form
from rftd.daemon.config.resolve.own_code import with_sources
from rftd.daemon.config.resolve.pacing import (
    as_colocated,
    eval_interval_steps,
    only_collects,
    resolve_pacing,
    sync_of_training,
    with_all_threads,
    without_training,
)
from rftd.daemon.config.resolve.pipeline import resolve_pipeline
from rftd.daemon.config.resolve.placement import gpus_of_trainer, with_devices, with_trainer_devices
from rftd.daemon.config.resolve.ranks import check_ranks, with_nodes
from rftd.daemon.config.resolve.rows import check_recorded, dataset, is_recorded, resolve_mix
from rftd.daemon.config.resolve.serving import SERVE, as_served, conversations, with_queue, with_server
from rftd.daemon.config.resolve.stages import StageConfig
from rftd.daemon.config.resolve.task_pipeline import resolve_task_pipeline
from rftd.daemon.config.resolve.taskset_algorithm import with_algorithms
from rftd.daemon.config.resolve.tasksets import eval_tasksets, training_tasksets
from rftd.daemon.config.resolve.tinker import as_tinker, check_service
from rftd.daemon.config.resolve.trainer import check_objective, resolve_trainer, with_companions, with_updates
from rftd.daemon.config.resolve.verl import with_fields_from_verl_tree
from rftd.daemon.config.schema.experiment import Experiment
from rftd.ops import limits
from rftd.streams.spec.schedule import explorer_interval
from rftd.streams.spec.spec import (
    AlgorithmSpec,
    ModelSpec,
    PolicySpec,
    RolloutSpec,
    StageSpec,
    TasksetSpec,
    TrainerSpec,
)
from rftd.streams.spec.split_submission import BOTH
from rftd.streams.spec.stage_tasks import is_queue
from rftd.workers.devices.host import ANY_HOST, Host
from rftd.workers.learning.algorithms.definition import AlgorithmDefinition

_ANY_LENGTHS = LengthLimits(2**20, 2**19, 2**19, 0)
"""Stand-in for contradictory lengths, so that the other settings of the stage are still checked."""


def resolve_stage(config: StageConfig, job_dir: str, host: Host, notes: Notes) -> StageSpec | None:
    """Returns the complete stage; None, with all issues in `notes`, if the algorithm is unknown."""
    experiment = as_tinker(with_fields_from_verl_tree(_of_its_mode(config.experiment, notes), notes), host, notes)
    definition = find_algorithm(experiment.algorithm, notes)
    kind = _kind(experiment, definition, notes)
    total_steps = _total_steps(experiment, notes)
    if kind == "both":
        experiment = as_explored(experiment)
    lengths = derive_lengths(experiment.model, notes) or _ANY_LENGTHS
    if not experiment.model.model_path and not answers_by_service(experiment):
        notes.wrong(("model", "model_path"), "names no model", "set it to the folder of a Hugging Face model")
    _replay_notes(experiment, kind, notes)
    rollout = resolve_rollout(experiment, host, notes) if kind == "both" else RolloutSpec()
    trainer = resolve_trainer(experiment, lengths.model, host.for_trainers, notes)
    if definition is None:
        return None
    # The remaining steps need the definition; all above is checked for an unknown algorithm, too.
    algorithm = resolve_algorithm(experiment, definition, total_steps, notes)
    trainer = with_companions(trainer, experiment, algorithm, notes)
    explores = kind == "both"
    batch, train_batch = _batches(experiment, algorithm, definition, notes)
    trainer = with_updates(trainer, experiment, algorithm, train_batch, notes)
    rollout, trainer = _with_placement(experiment, rollout, trainer, host, notes, explores=explores)
    expert, expert_rows = resolve_mix(experiment, algorithm, train_batch, notes) if explores else (None, 0)
    explored = train_batch - expert_rows if explores else 0
    _fits_a_record(experiment, algorithm, explored, train_batch - explored, notes)
    sync = sync_of_training(experiment)
    policy = PolicySpec()
    if explores:
        # The other half may be submitted on another machine, with a schedule that must equal this one.
        meets = ANY_HOST if _is_half(experiment) else host
        sync, policy = resolve_pacing(experiment, algorithm, explored, meets, notes)
    if experiment.mode == "colocate":
        rollout, trainer = with_all_threads(experiment, rollout, trainer)
    if explores:
        rollout = schedule_rollouts(rollout, experiment, algorithm, sync, notes)
    folder = str(PurePosixPath(job_dir, config.name)) if config.prefix else job_dir
    tasksets = _tasksets(experiment, lengths, algorithm, folder, notes) if explores else ()
    stage = StageSpec(
        name=config.name,
        folder=folder,
        kind=kind,
        total_steps=total_steps,
        total_epochs=0 if total_steps else experiment.buffer.total_epochs,
        batch_size=batch,
        train_batch_size=train_batch,
        algorithm=algorithm,
        model=_model(experiment, lengths, notes),
        taskset=tasksets[0] if tasksets else None,
        more_tasksets=tasksets[1:],
        dataset=expert if explores else dataset(experiment, definition, algorithm.policy_loss, notes),
        expert_rows=expert_rows,
        evals=eval_tasksets(experiment, lengths, notes) if explores else (),
        eval_interval=eval_interval_steps(experiment, explorer_interval(sync), notes) if explores else 0,
        eval_on_startup=explores and experiment.explorer.eval_on_startup,
        eval_at_end=explores,
        max_read_timeout_s=experiment.buffer.trainer_input.experience_buffer.max_read_timeout,
        pipeline=resolve_pipeline(experiment, tasksets, notes, explores=explores, inherited=bool(config.prefix)),
        policy=policy,
        synchronizer=sync,
        turns=experiment.mode == "colocate",
        rollout=rollout,
        trainer=trainer,
        auxiliary=resolve_auxiliary(experiment, lengths, trainer.teacher_path, host, notes) if explores else (),
    )
    stage = with_sources(with_queue(stage, experiment) if is_queue(stage) else stage, experiment.sources)
    stage = with_decisions(stage, experiment, notes, inheritable=bool(config.prefix))
    stage = resolve_task_pipeline(stage, experiment, notes, inherited=bool(config.prefix))
    _check_whole(stage, notes)
    return _with_its_mode(stage, experiment, notes) if explores else stage


def _check_whole(stage: StageSpec, notes: Notes) -> None:
    """Reports settings of a stage that contradict each other."""
    check_objective(stage, notes)
    check_service(stage, notes)


def _is_half(experiment: Experiment) -> bool:
    """True in mode `explore` or `train`, where the other half of the experiment may be submitted on another machine;
    False if rollouts are only collected.
    """
    return experiment.mode in BOTH and not experiment.explorer.collect_only


def _with_placement(
    experiment: Experiment, rollout: RolloutSpec, trainer: TrainerSpec, host: Host, notes: Notes, *, explores: bool
) -> tuple[RolloutSpec, TrainerSpec]:
    """Returns the parts of a stage with GPUs assigned to each worker, and with the trainer's ranks checked."""
    issues = len(notes.issues)
    if explores:
        rollout, trainer = with_devices(experiment, rollout, trainer, host, notes)
    else:
        trainer = with_trainer_devices(experiment, trainer, host.for_trainers, notes)
    if len(notes.issues) == issues:  # otherwise the number of ranks is unknown
        trains_on = host.for_trainers
        on_gpus = gpus_of_trainer(experiment, trainer, trains_on) > 0
        trainer = check_ranks(trainer, experiment.trainer, trains_on, on_gpus=on_gpus, notes=notes)
        trainer = with_nodes(experiment, trainer, trains_on, notes)
    return rollout, trainer


def _of_its_mode(experiment: Experiment, notes: Notes) -> Experiment:
    """Returns the experiment adjusted to its mode."""
    if experiment.mode == "colocate":
        return as_colocated(experiment, notes)
    if experiment.mode == SERVE:
        return as_served(experiment, notes)
    return as_benched(experiment, notes) if experiment.mode == BENCH else experiment


def _with_its_mode(stage: StageSpec, experiment: Experiment, notes: Notes) -> StageSpec:
    """Returns an exploring stage adjusted to its mode."""
    stage = without_training(stage, notes) if only_collects(experiment, notes) else stage
    stage = as_one_evaluation(stage) if experiment.mode == BENCH else stage
    return with_server(stage, experiment, notes) if experiment.mode == SERVE else stage


def _tasksets(
    experiment: Experiment, lengths: LengthLimits, algorithm: AlgorithmSpec, folder: str, notes: Notes
) -> tuple[TasksetSpec, ...]:
    """Returns the tasksets to explore; none in mode bench, and clients' conversations in mode serve."""
    repeat_times = algorithm.repeat_times
    tasksets: tuple[TasksetSpec, ...] = ()
    if experiment.mode not in (BENCH, SERVE):
        tasksets = training_tasksets(experiment, lengths, repeat_times, notes)
    tasksets = with_algorithms(tasksets, experiment, algorithm, notes)
    return (conversations(experiment, lengths, repeat_times, folder, notes),) if experiment.mode == SERVE else tasksets


def _kind(experiment: Experiment, definition: AlgorithmDefinition | None, notes: Notes) -> str:
    """Returns what the stage does (`both`, `explore` or `train`); a mode impossible for the algorithm is an issue."""
    mode = experiment.mode
    algorithm = experiment.algorithm.algorithm_type
    # Serving explores and trains on conversations; benchmarking explores held-out tasksets.
    mode = "both" if mode in ("colocate", SERVE, BENCH) else mode
    if definition is None:
        return "train" if mode == "train" else "both"
    able = "both" if definition.needs.rollouts else "train"
    if mode != able and able == "train":
        why = "trains on the rows of a dataset, without explorers"
        notes.wrong(("mode",), f"is {mode}, but {algorithm} {why}", "write mode: train")
    elif able == "both" and is_recorded(experiment):
        check_recorded(experiment, definition, notes)
        return "train"
    elif mode != able and not experiment.explorer.collect_only:
        other_mode = "train" if mode == "explore" else "explore"
        notes.warn(
            f"mode {mode} covers one half: submit the same file with mode: {other_mode} where the other half should "
            "run, or a file that agrees in the settings of both halves"
        )
    return able


def _total_steps(experiment: Experiment, notes: Notes) -> int:
    """Returns the steps of the stage; 0 if determined by epochs, computed by the daemon from the number of rows."""
    buffer = experiment.buffer.total_steps
    trainer = experiment.trainer.total_steps
    if buffer is not None and trainer is not None and buffer != trainer:
        notes.warn(f"trainer.total_steps {trainer} is overridden by buffer.total_steps {buffer}")
    return buffer or trainer or 0


def _batches(
    experiment: Experiment, algorithm: AlgorithmSpec, definition: AlgorithmDefinition, notes: Notes
) -> tuple[int, int]:
    """Returns the tasks of an explore step, and the experiences or rows of a training step."""
    batch = experiment.buffer.batch_size
    train_batch = experiment.buffer.train_batch_size
    if definition.needs.rollouts:  # also of recorded ones: a file says as much of a step as where they are drawn
        return batch, train_batch or batch * algorithm.repeat_times
    if not train_batch:
        problem = "a train stage needs the number of rows per step"
        notes.wrong(("buffer", "train_batch_size"), problem, "set buffer.train_batch_size")
    return batch, train_batch


def _fits_a_record(experiment: Experiment, algorithm: AlgorithmSpec, explored: int, rows: int, notes: Notes) -> None:
    """Refuses more items than fit into a plan's record, and more members than fit into a closed group's record."""
    train_batch_size = experiment.buffer.train_batch_size
    by_tasks = explored and not train_batch_size
    field = "batch_size" if by_tasks else "train_batch_size"
    factor = " times repeat_times" if by_tasks else ""
    for count, noun, most in (
        (explored, "experiences", limits.PLAN_EXPERIENCES),
        (rows, "rows", limits.PLAN_ROWS),
    ):
        # Checked here, because the log would refuse an oversized record only in the middle of the run.
        if count > most:
            size = train_batch_size or experiment.buffer.batch_size
            wrong = f"is {size}{factor}, so a step trains {count} {noun}, but the record of a plan holds at most {most}"
            notes.wrong(("buffer", field), wrong, f"lower it, so that a step trains {most} {noun} or less", WrongValue)
    if (repeat := algorithm.repeat_times) > limits.GROUP_MEMBERS and explored:
        wrong = f"is {repeat}, but the record of a closed group holds at most {limits.GROUP_MEMBERS} rollouts"
        notes.wrong(("algorithm", "repeat_times"), wrong, f"set it to {limits.GROUP_MEMBERS} or less", WrongValue)


def _replay_notes(experiment: Experiment, kind: str, notes: Notes) -> None:
    """Warns of a buffer's storage type without effect."""
    buffer = experiment.buffer.trainer_input.experience_buffer
    if kind != "both":
        return
    if buffer.storage_type != "queue":
        where = "buffer.trainer_input.experience_buffer.storage_type"
        notes.warn(f"{where} {buffer.storage_type} becomes queue: experiences are stored in the log")


def _model(experiment: Experiment, lengths: LengthLimits, notes: Notes) -> ModelSpec:
    """Returns the specification of the model."""
    model = experiment.model
    spec = ModelSpec(
        path=model.model_path,
        max_model_len=lengths.model,
        max_prompt_tokens=lengths.prompt,
        max_response_tokens=lengths.response,
        min_response_tokens=lengths.min_response,
        chat_template=model.custom_chat_template,
        enable_thinking=model.enable_thinking,
        enable_prompt_truncation=model.enable_prompt_truncation,
        trust_remote_code=model.trust_remote_code,
        lora=resolve_lora(model, notes),
    )
    return with_answer_form(spec, experiment.explorer.rollout_model, notes)
