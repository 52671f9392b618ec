"""Section `trainer`: the engine, companion models (critic, teacher), and the optimizer steps of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Contradiction, Notes, Unsupported, WrongValue
from rftd.daemon.config.resolve.arguments import check_engine, check_struct, lifted_counts, refused_value
from rftd.daemon.config.resolve.megatron import STRATEGY, check_strategies, warn_without_megatron
from rftd.daemon.config.resolve.rollout_engine import where_torch_computes
from rftd.daemon.config.resolve.verl import check_tree, leaves, verl_arguments, warn_of_critic_keys
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.verl.table import critic_arguments
from rftd.ops import limits
from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import AlgorithmSpec, StageSpec, TrainerSpec
from rftd.streams.spec.stage_parts import UpdatesSpec
from rftd.workers.devices.engine_build import how_to_install
from rftd.workers.devices.host import Host
from rftd.workers.learning import engine_registry as trainer_engines
from rftd.workers.learning.algorithms.advantages.registry import ADVANTAGES
from rftd.workers.learning.algorithms.registry import lookup
from rftd.workers.learning.critic_arguments import CriticArgs
from rftd.workers.learning.losses.policy_loss import LossNeeds
from rftd.workers.learning.losses.registry import POLICY_LOSSES
from rftd.workers.learning.token_advantages.token_advantage import PassField, token_advantage

TORCH_DTYPE: Final = "float32"
"""Default number format of the trainer's forward passes."""
TRAINER_ARGS: Final[FieldPath] = ("trainer", "engine_args")
"""Path of the field with the engine's arguments."""
_GUIDES: Final = ("verl", "tinker")
"""Trainer engines named in Trinity-RFT's guide."""
_TRAINING_DTYPES: Final = (TORCH_DTYPE, "bfloat16")
"""Number formats in which built-in engines train."""

MIN_MICRO_BATCH_TOKENS: Final = 4096
"""Lower bound of the default, twice the model's length: a tiny model would otherwise get many tiny micro-batches."""
_CRITIC_ARGS: Final = critic_arguments()
"""Name of the engine's argument for each path in `trainer.trainer_config.critic`."""

_FIELDS: Final = {"ppo_epochs": "epochs", "ppo_mini_batch_size": "mini_batch_items", "shuffle": "shuffle"}
"""Field of `UpdatesSpec` for each field of the file that concerns optimizer steps."""
_CONFIG: Final[FieldPath] = ("trainer", "trainer_config")
"""Path of the field with veRL's configuration tree."""


def resolve_trainer(experiment: Experiment, model_tokens: int, host: Host, notes: Notes) -> TrainerSpec:
    """Returns the trainer of one stage: engine, strategy, checkpoints, micro-batches and the engine's arguments."""
    section = experiment.trainer
    engine: str = section.trainer_type
    # verl is the guide's default: a file without an engine is trained on any machine.
    if engine == "verl" and (why := _without_verl(experiment, host)):
        setting = "verl" if "trainer_type" in section.model_fields_set else "is not set"
        where = where_torch_computes(experiment, section.engine_args, host)
        notes.warn(f"trainer.trainer_type {setting}: torch trains{where}: {why}")
        engine = "torch"
    else:
        check_engine(trainer_engines.ENGINES, engine, _GUIDES, ("trainer", "trainer_type"), notes)
    check_tree(experiment, engine, notes)
    strategy = check_strategies(section, leaves(section), engine, host, notes)
    if strategy != STRATEGY:
        warn_without_megatron(section, leaves(section), engine, notes)
    elif experiment.model.lora_configs:
        problem = "has an adapter, but verl's strategy megatron trains whole models"
        notes.wrong(("model", "lora_configs"), problem, "write trainer.trainer_strategy: fsdp2", Unsupported)
    args, lifted = lifted_counts(section.engine_args, ("threads",), TRAINER_ARGS, notes)
    ulysses = max(section.ulysses_sequence_parallel_size, 1)
    if engine == "verl":
        # An argument written by the user under the engine's name takes precedence over verl's.
        args = {**verl_arguments(section, strategy, host, notes), **args}
    elif section.ulysses_sequence_parallel_size > 1 and not host.gpus:
        where = where_torch_computes(experiment, args, host)
        notes.warn(f"trainer.ulysses_sequence_parallel_size has no effect: {engine} trains{where}")
    # The specification has a separate field: the engine must not receive the format twice.
    dtype = args.pop("dtype", TORCH_DTYPE)
    if dtype not in _TRAINING_DTYPES:
        problem = f"is {dtype!r}, but the trainer computes in {' or '.join(_TRAINING_DTYPES)}"
        notes.wrong((*TRAINER_ARGS, "dtype"), problem, f"write {TORCH_DTYPE}", WrongValue)
        dtype = TORCH_DTYPE
    tokens = args.pop("max_token_len_per_gpu", section.max_token_len_per_gpu)
    if (accepted_arguments := trainer_engines.arguments_of(engine)) is not None:
        check_struct(
            args, accepted_arguments, TRAINER_ARGS, f"the {engine} engine", notes, extra_names=("threads", "dtype")
        )
    return TrainerSpec(
        engine=engine,
        save_interval=section.save_interval,
        max_checkpoints_to_keep=section.max_checkpoints_to_keep,
        save_hf=section.save_hf_checkpoint,
        max_tokens_per_micro_batch=tokens
        # Twice the longest sequence always holds at least one, and usually packs several.
        or max(MIN_MICRO_BATCH_TOKENS, math.ceil(2 * model_tokens / ulysses)),
        micro_batch_written=bool(tokens),
        threads=lifted.get("threads", 1),
        dtype=dtype,
        max_nonfinite_steps=section.max_nonfinite_steps,
        max_idle_steps=section.max_idle_steps,
        engine_args=args,
    )


def _without_verl(experiment: Experiment, host: Host) -> str:
    """Returns the reason why verl cannot train; empty if possible, or if verl is set and the workers' machine is
    unknown.
    """
    is_set = "trainer_type" in experiment.trainer.model_fields_set
    if not host.seen:
        return "" if is_set else "it is unknown whether the workers' machine has GPUs"
    if not (host.gpus or is_set):
        return f"there is {host.named()}"
    if "verl" not in host.packages:
        return f"verl is not installed where workers run ({how_to_install('verl')})"
    return ""


def with_updates(
    trainer: TrainerSpec,
    experiment: Experiment,
    algorithm: AlgorithmSpec,
    train_batch: int,
    notes: Notes,
) -> TrainerSpec:
    """Returns the trainer with its optimizer steps per batch. Adds an issue if a mini-batch does not divide the
    batch.
    """
    section = experiment.trainer
    config = experiment.trainer.trainer_config or {}
    # verl has `actor` below `actor_rollout_ref`; a file may omit the level.
    wrapped = "actor_rollout_ref" in config
    actor: FieldPath = (*_CONFIG, "actor_rollout_ref", "actor") if wrapped else (*_CONFIG, "actor")
    critic: FieldPath = (*_CONFIG, "critic")
    tree_settings = _read(_section(config, actor[len(_CONFIG) :]), actor, train_batch, notes)
    trainer_settings = {
        name: getattr(section, name)
        for name in _FIELDS
        if name in section.model_fields_set and getattr(section, name) is not None
    }
    for name in trainer_settings.keys() & tree_settings.keys():
        if trainer_settings[name] != tree_settings[name]:
            problem = f"is {trainer_settings[name]}, but {show((*actor, name))} is {tree_settings[name]}"
            notes.wrong(("trainer", name), problem, "keep one of the two", Contradiction)
    _check_size(trainer_settings, ("trainer",), train_batch, notes)
    # If both are set they are equal, or an issue reports the difference.
    policy = _spec(UpdatesSpec(), {**tree_settings, **trainer_settings})
    _warn(policy, algorithm, train_batch, notes)
    trainer = msgspec.structs.replace(trainer, updates=policy)
    if "values" in fields_of(algorithm):
        of_critic = _read(_section(config, critic[len(_CONFIG) :]), critic, train_batch, notes)
        if of_critic:
            trainer = msgspec.structs.replace(trainer, critic_updates=_spec(policy, of_critic))
    return trainer


def _section(config: Mapping[str, Any], path: FieldPath) -> Mapping[str, Any]:
    """Returns the section at a path of veRL's configuration tree; empty if absent."""
    node: Any = config
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else {}


def _read(section: Mapping[str, Any], path: FieldPath, train_batch: int, notes: Notes) -> dict[str, Any]:
    """Returns the fields of the optimizer steps in one section of veRL's tree; adds an issue for each wrong value."""
    settings: dict[str, Any] = {}
    for name in _FIELDS:
        setting = section.get(name)
        if setting is None:
            continue
        if name == "shuffle":
            if not isinstance(setting, bool):
                notes.wrong((*path, name), f"is {setting!r}", "write true or false", WrongValue)
                continue
        elif isinstance(setting, bool) or not isinstance(setting, int) or not 1 <= setting <= limits.PLAN_ROWS:
            fix = f"write a whole number between 1 and {limits.PLAN_ROWS}"
            notes.wrong((*path, name), f"is {setting!r}", fix, WrongValue)
            continue
        settings[name] = setting
    _check_size(settings, path, train_batch, notes)
    return settings


def _check_size(settings: Mapping[str, Any], path: FieldPath, train_batch: int, notes: Notes) -> None:
    """Adds an issue if the size of a mini-batch does not divide the size of the batch."""
    size = settings.get("ppo_mini_batch_size")
    if size is None or not train_batch or train_batch % size == 0:
        return
    problem = f"is {size}, but a batch has {train_batch} items: "
    problem += (
        f"{train_batch % size} would be left over" if size < train_batch else "the mini-batch is larger than the batch"
    )
    # A remainder would be a smaller mini-batch with the same learning rate.
    nearest = max(divisor for divisor in range(1, min(size, train_batch) + 1) if train_batch % divisor == 0)
    fix = f"write a divisor of {train_batch}, such as {nearest}, or change buffer.train_batch_size"
    notes.wrong((*path, "ppo_mini_batch_size"), problem, fix, Contradiction)


def _spec(base: UpdatesSpec, settings: Mapping[str, Any]) -> UpdatesSpec:
    """Returns the optimizer steps with the settings applied."""
    return msgspec.structs.replace(base, **{_FIELDS[name]: setting for name, setting in settings.items()})


def _warn(updates: UpdatesSpec, algorithm: AlgorithmSpec, train_batch: int, notes: Notes) -> None:
    """Warns if most mini-batches hold only one kind of row, and if later optimizer steps of a batch are not bounded by
    a ratio.
    """
    parts = 0 < updates.mini_batch_items < train_batch
    if parts and algorithm.sample_strategy == "mix" and not updates.shuffle:
        notes.warn(
            "trainer.ppo_mini_batch_size: an expert's rows come after the experiences of a batch, so most mini-batches "
            "contain only one kind; trainer.shuffle mixes them"
        )
    if (parts or updates.epochs > 1) and lookup(algorithm.kind).needs.rollouts and not _has_ratio(algorithm):
        notes.warn(
            f"trainer.ppo_epochs, trainer.ppo_mini_batch_size: {algorithm.policy_loss} has no ratio to the weights "
            "that sampled the tokens, so later optimizer steps of a batch are unbounded"
        )


def _has_ratio(algorithm: AlgorithmSpec) -> bool:
    """True if the loss compares with the weights that sampled the tokens; also for any third-party loss."""
    if not POLICY_LOSSES.builtin(algorithm.policy_loss):
        return True
    try:
        loss = POLICY_LOSSES.open(algorithm.policy_loss, algorithm.policy_loss_args)
    except ConfigError:  # reported where the part is made
        return True
    return LossNeeds.of(loss).old_logprobs


def with_companions(
    trainer: TrainerSpec, experiment: Experiment, algorithm: AlgorithmSpec, notes: Notes
) -> TrainerSpec:
    """Returns the trainer with the critic or teacher model that the algorithm needs."""
    needs = fields_of(algorithm)
    if "values" in needs:
        # An argument written by the user under the engine's name takes precedence over verl's.
        args = _critic_args(experiment.trainer.trainer_config, notes) | trainer.engine_args
        trainer = msgspec.structs.replace(
            trainer,
            critic_path=experiment.model.critic_model_path,
            critic_warmup_steps=experiment.trainer.critic_warmup,
            engine_args=args,
        )
    else:
        warn_of_critic_keys(experiment.trainer.trainer_config or {}, notes)
        for field in msgspec.structs.fields(CriticArgs):
            if trainer.engine_args.get(field.name, field.default) != field.default:
                notes.warn(f"{show((*TRAINER_ARGS, field.name))} has no effect: the algorithm has no critic")
    if "teacher_logprobs" in needs:
        models = experiment.explorer.auxiliary_models
        path = models[0].model_path if models else None
        if not path:
            problem = f"names no teacher, but {algorithm.advantage} needs one"
            notes.wrong(
                ("explorer", "auxiliary_models"),
                problem,
                "write [{model_path: the folder of the teacher}]",
                Contradiction,
            )
        trainer = msgspec.structs.replace(trainer, teacher_path=path or "")
    return trainer


def check_objective(stage: StageSpec, notes: Notes) -> None:
    """Adds an issue if a built-in engine cannot compute what the objective needs; the daemon checks third-party
    engines.
    """
    if not trainer_engines.ENGINES.builtin(stage.trainer.engine):
        return
    try:
        unmet = trainer_engines.unmet(stage)
    except ConfigError:  # reported where the part is made, or later, after the import of third-party parts
        return
    for demand, why in unmet:
        problem = f"{demand.words}, but {stage.trainer.engine} does not provide it: {why}"
        notes.wrong(demand.field, problem, demand.fix, Contradiction)


def fields_of(algorithm: AlgorithmSpec) -> frozenset[PassField]:
    """Returns the fields of a batch read by the advantages; empty for a third-party function, which is not imported
    here.
    """
    if not ADVANTAGES.builtin(algorithm.advantage):
        return frozenset()
    try:
        advantage = token_advantage(algorithm)
    except ConfigError:  # reported where the part is made
        return frozenset()
    return advantage.needs if advantage else frozenset()


def _critic_args(config: dict[str, Any] | None, notes: Notes) -> dict[str, Any]:
    """Returns the engine arguments for the keys of the guide's critic, checked."""
    section = (config or {}).get("critic", {})
    arguments: dict[str, Any] = {}
    for path, name in _CRITIC_ARGS.items():
        setting: Any = section
        for key in path:
            setting = setting.get(key) if isinstance(setting, dict) else None
        if setting is None:
            continue
        if name == "critic_lr_warmup_steps" and setting == 0:
            setting = -1  # veRL uses the ratio in this case
        where = ("trainer", "trainer_config", "critic", *path)
        if arguments.setdefault(name, setting) != setting:
            notes.wrong(
                where,
                f"is {setting!r}, but lr_scheduler_type (the same setting) is {arguments[name]!r}",
                "keep one of the two",
            )
        reason = refused_value(CriticArgs, name, setting)
        if reason is not None:
            notes.wrong(where, f"is {setting!r}", reason, WrongValue)
            del arguments[name]
    return arguments
