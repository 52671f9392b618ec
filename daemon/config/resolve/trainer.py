"""Section `trainer`: the engine, the models beside the one that is trained, and the optimizer steps of a batch."""

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
from rftd.daemon.config.resolve.verl import check_tree, leaves, verl_arguments, warn_without_critic
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.verl.table import critic_arguments
from rftd.ops import limits
from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import AlgorithmSpec, StageSpec, TrainerSpec
from rftd.streams.spec.updates import UpdatesSpec
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
TRAINER_ARGS: Final[FieldPath] = ("trainer", "engine_args")
_GUIDES: Final = ("verl", "tinker")
"""The engines of the guide."""
_TRAINED_IN: Final = (TORCH_DTYPE, "bfloat16")

MIN_MICRO_BATCH_TOKENS: Final = 4096
"""The guide's default is twice the model's length; for a tiny one that would make many tiny micro-batches."""
_CRITIC_ARGS: Final = critic_arguments()
"""Fields of `trainer.trainer_config.critic`, and the names that the engine has for them."""

_FIELDS: Final = {"ppo_epochs": "epochs", "ppo_mini_batch_size": "mini_batch_items", "shuffle": "shuffle"}
_CONFIG: Final[FieldPath] = ("trainer", "trainer_config")


def resolve_trainer(experiment: Experiment, model_tokens: int, host: Host, notes: Notes) -> TrainerSpec:
    """The trainer of one stage."""
    given = experiment.trainer
    engine: str = given.trainer_type
    # The guide's default: a file that says nothing of engines is trained wherever it is submitted.
    if engine == "verl" and (why := _without_verl(experiment, host)):
        asked = "verl" if "trainer_type" in given.model_fields_set else "is not set"
        where = where_torch_computes(experiment, given.engine_args, host)
        notes.warn(f"trainer.trainer_type {asked}: torch trains{where}: {why}")
        engine = "torch"
    else:
        check_engine(trainer_engines.ENGINES, engine, _GUIDES, ("trainer", "trainer_type"), notes)
    check_tree(experiment, engine, notes)
    strategy = check_strategies(given, leaves(given), engine, host, notes)
    if strategy != STRATEGY:
        warn_without_megatron(given, leaves(given), engine, notes)
    elif experiment.model.lora_configs:
        what = "names an adapter, and verl's strategy megatron trains whole models"
        notes.wrong(("model", "lora_configs"), what, "write trainer.trainer_strategy: fsdp2", Unsupported)
    args, lifted = lifted_counts(given.engine_args, ("threads",), TRAINER_ARGS, notes)
    ulysses = max(given.ulysses_sequence_parallel_size, 1)
    if engine == "verl":
        # An argument of the engine that the user wrote by its own name counts more than verl's.
        args = {**verl_arguments(given, strategy, host, notes), **args}
    elif given.ulysses_sequence_parallel_size > 1 and not host.gpus:
        where = where_torch_computes(experiment, args, host)
        notes.warn(f"trainer.ulysses_sequence_parallel_size has no effect: {engine} trains{where}")
    # The specification has a field for it: the engine must not be given it twice.
    dtype = args.pop("dtype", TORCH_DTYPE)
    if dtype not in _TRAINED_IN:
        what = f"is {dtype!r}, and the trainer computes in {' or '.join(_TRAINED_IN)}"
        notes.wrong((*TRAINER_ARGS, "dtype"), what, f"write {TORCH_DTYPE}", WrongValue)
        dtype = TORCH_DTYPE
    tokens = args.pop("max_token_len_per_gpu", given.max_token_len_per_gpu)
    if (taken := trainer_engines.arguments_of(engine)) is not None:
        check_struct(args, taken, TRAINER_ARGS, f"the {engine} engine", notes, beside=("threads", "dtype"))
    return TrainerSpec(
        engine=engine,
        save_interval=given.save_interval,
        max_checkpoints_to_keep=given.max_checkpoints_to_keep,
        save_hf=given.save_hf_checkpoint,
        max_tokens_per_micro_batch=tokens
        # Twice the longest sequence always holds at least one, and usually packs several.
        or max(MIN_MICRO_BATCH_TOKENS, math.ceil(2 * model_tokens / ulysses)),
        micro_batch_written=bool(tokens),
        threads=lifted.get("threads", 1),
        dtype=dtype,
        max_nonfinite_steps=given.max_nonfinite_steps,
        max_idle_steps=given.max_idle_steps,
        engine_args=args,
    )


def _without_verl(experiment: Experiment, host: Host) -> str:
    """The reason why verl cannot train; empty if it can, or if it is written and nobody knows the workers' machine."""
    written = "trainer_type" in experiment.trainer.model_fields_set
    if not host.seen:
        return "" if written else "whether there are GPUs where workers run is not known"
    if not (host.gpus or written):
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
    """The trainer with the optimizer steps of policy and critic; refuses a mini-batch that does not divide a batch."""
    given = experiment.trainer
    config = experiment.trainer.trainer_config or {}
    # verl has `actor` below `actor_rollout_ref`; a file may leave that level out.
    wrapped = "actor_rollout_ref" in config
    actor: FieldPath = (*_CONFIG, "actor_rollout_ref", "actor") if wrapped else (*_CONFIG, "actor")
    critic: FieldPath = (*_CONFIG, "critic")
    found = _read(_section(config, actor[len(_CONFIG) :]), actor, train_batch, notes)
    own = {
        name: getattr(given, name)
        for name in _FIELDS
        if name in given.model_fields_set and getattr(given, name) is not None
    }
    for name in own.keys() & found.keys():
        if own[name] != found[name]:
            what = f"is {own[name]}, and {show((*actor, name))} is {found[name]}"
            notes.wrong(("trainer", name), what, "keep one of the two", Contradiction)
    _check_size(own, ("trainer",), train_batch, notes)
    # Where both are given they are equal, or an issue says that they are not.
    policy = _spec(UpdatesSpec(), {**found, **own})
    _warn(policy, algorithm, train_batch, notes)
    trainer = msgspec.structs.replace(trainer, updates=policy)
    if "values" in fields_of(algorithm):
        of_critic = _read(_section(config, critic[len(_CONFIG) :]), critic, train_batch, notes)
        if of_critic:
            trainer = msgspec.structs.replace(trainer, critic_updates=_spec(policy, of_critic))
    return trainer


def _section(config: Mapping[str, Any], path: FieldPath) -> Mapping[str, Any]:
    """The section of the guide's tree; empty if there is none."""
    node: Any = config
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else {}


def _read(section: Mapping[str, Any], path: FieldPath, train_batch: int, notes: Notes) -> dict[str, Any]:
    """The fields of one section of the guide's tree, checked: the schema does not look into it."""
    found: dict[str, Any] = {}
    for name in _FIELDS:
        value = section.get(name)
        if value is None:
            continue
        if name == "shuffle":
            if not isinstance(value, bool):
                notes.wrong((*path, name), f"is {value!r}", "write true or false", WrongValue)
                continue
        elif isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limits.PLAN_ROWS:
            fix = f"write a whole number between 1 and {limits.PLAN_ROWS}"
            notes.wrong((*path, name), f"is {value!r}", fix, WrongValue)
            continue
        found[name] = value
    _check_size(found, path, train_batch, notes)
    return found


def _check_size(found: Mapping[str, Any], path: FieldPath, train_batch: int, notes: Notes) -> None:
    """Refuses a mini-batch that does not divide the batch."""
    size = found.get("ppo_mini_batch_size")
    if size is None or not train_batch or train_batch % size == 0:
        return
    what = f"is {size}, and a batch has {train_batch} items: "
    what += f"{train_batch % size} would be left over" if size < train_batch else "that is more than all of them"
    # A remainder would be a smaller mini-batch with the same learning rate.
    nearest = max(each for each in range(1, min(size, train_batch) + 1) if train_batch % each == 0)
    fix = f"write a divisor of {train_batch}, such as {nearest}, or change buffer.train_batch_size"
    notes.wrong((*path, "ppo_mini_batch_size"), what, fix, Contradiction)


def _spec(base: UpdatesSpec, given: Mapping[str, Any]) -> UpdatesSpec:
    return msgspec.structs.replace(base, **{_FIELDS[name]: value for name, value in given.items()})


def _warn(updates: UpdatesSpec, algorithm: AlgorithmSpec, train_batch: int, notes: Notes) -> None:
    parts = 0 < updates.mini_batch_items < train_batch
    if parts and algorithm.sample_strategy == "mix" and not updates.shuffle:
        notes.warn(
            "trainer.ppo_mini_batch_size: an expert's rows come after the experiences of a batch, so most mini-batches "
            "have one kind alone; trainer.shuffle mixes them"
        )
    if (parts or updates.epochs > 1) and lookup(algorithm.kind).needs.rollouts and not _has_ratio(algorithm):
        notes.warn(
            f"trainer.ppo_epochs, trainer.ppo_mini_batch_size: {algorithm.policy_loss} has no ratio to the weights "
            "that drew the tokens, so nothing bounds the later optimizer steps of a batch"
        )


def _has_ratio(algorithm: AlgorithmSpec) -> bool:
    """True if the loss compares with the weights that drew the tokens; also for any third party's."""
    if not POLICY_LOSSES.builtin(algorithm.policy_loss):
        return True
    try:
        loss = POLICY_LOSSES.open(algorithm.policy_loss, algorithm.policy_loss_args)
    except ConfigError:  # said already, where the part was made
        return True
    return LossNeeds.of(loss).old_logprobs


def with_companions(
    trainer: TrainerSpec, experiment: Experiment, algorithm: AlgorithmSpec, notes: Notes
) -> TrainerSpec:
    """The trainer with the critic and the teacher that the advantages need."""
    needs = fields_of(algorithm)
    if "values" in needs:
        # An argument of the engine that the user wrote by its own name counts more than verl's.
        args = _critic_args(experiment.trainer.trainer_config, notes) | trainer.engine_args
        trainer = msgspec.structs.replace(
            trainer,
            critic_path=experiment.model.critic_model_path,
            critic_warmup_steps=experiment.trainer.critic_warmup,
            engine_args=args,
        )
    else:
        warn_without_critic(experiment.trainer.trainer_config or {}, notes)
        for field in msgspec.structs.fields(CriticArgs):
            if trainer.engine_args.get(field.name, field.default) != field.default:
                notes.warn(f"{show((*TRAINER_ARGS, field.name))} has no effect: the algorithm has no critic")
    if "teacher_logprobs" in needs:
        models = experiment.explorer.auxiliary_models
        path = models[0].model_path if models else None
        if not path:
            what = f"names no teacher, and {algorithm.advantage} learns from one"
            notes.wrong(
                ("explorer", "auxiliary_models"), what, "write [{model_path: the folder of the teacher}]", Contradiction
            )
        trainer = msgspec.structs.replace(trainer, teacher_path=path or "")
    return trainer


def check_objective(stage: StageSpec, notes: Notes) -> None:
    """Refuses an objective that needs what an engine of ours cannot give; of others the daemon asks, which imports
    them."""
    if not trainer_engines.ENGINES.builtin(stage.trainer.engine):
        return
    try:
        unmet = trainer_engines.unmet(stage)
    except ConfigError:  # said already, where the part was made, or later, where third parties' are imported
        return
    for demand, why in unmet:
        what = f"{demand.words}, and {stage.trainer.engine} has none: {why}"
        notes.wrong(demand.field, what, demand.fix, Contradiction)


def fields_of(algorithm: AlgorithmSpec) -> frozenset[PassField]:
    """The fields of a batch that the advantages must know.

    Of a third party's function nothing is known here: its module is not imported.
    """
    if not ADVANTAGES.builtin(algorithm.advantage):
        return frozenset()
    try:
        found = token_advantage(algorithm)
    except ConfigError:  # said already, where the part was made
        return frozenset()
    return found.needs if found else frozenset()


def _critic_args(config: dict[str, Any] | None, notes: Notes) -> dict[str, Any]:
    """The arguments that the keys of the guide's critic are, checked."""
    given = (config or {}).get("critic", {})
    found: dict[str, Any] = {}
    for path, name in _CRITIC_ARGS.items():
        value: Any = given
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            continue
        if name == "critic_lr_warmup_steps" and value == 0:
            value = -1  # veRL takes the ratio then
        where = ("trainer", "trainer_config", "critic", *path)
        if found.setdefault(name, value) != value:
            notes.wrong(where, f"is {value!r}, and lr_scheduler_type, which is the same, {found[name]!r}", "keep one")
        reason = refused_value(CriticArgs, name, value)
        if reason is not None:
            notes.wrong(where, f"is {value!r}", reason, WrongValue)
            del found[name]
    return found
