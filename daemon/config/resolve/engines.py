"""Which engines run a stage, and on what."""

from __future__ import annotations

import math
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Unsupported, WrongValue
from rftd.daemon.config.resolve.arguments import check_struct
from rftd.daemon.config.resolve.notes import Notes
from rftd.daemon.config.schema.experiment import Experiment
from rftd.ops import limits
from rftd.streams.spec import RolloutSpec, TrainerSpec
from rftd.workers.rollout.engines import registry as rollout_engines
from rftd.workers.training.engines import registry as trainer_engines

_ROLLOUT = ("torch", "openai", "fake", "tinker", "vllm")
_TORCH_DTYPE = "float32"
_TRAINED_IN: Final = (_TORCH_DTYPE, "bfloat16")
ROLLOUT_ARGS: Final[FieldPath] = ("explorer", "rollout_model", "extra_engine_args")
TRAINER_ARGS: Final[FieldPath] = ("trainer", "engine_args")

MIN_MICRO_BATCH_TOKENS: Final = 4096
"""The guide's default is twice the model's length; for a tiny one that would make many tiny micro-batches."""


def resolve_rollout(experiment: Experiment, gpus: int, notes: Notes) -> RolloutSpec:
    """The explorers of one stage."""
    given = experiment.explorer
    model = experiment.explorer.rollout_model
    engine: str = model.engine_type
    if experiment.model.tinker.enable:
        engine = "tinker"
    elif engine == "vllm" and not gpus:
        notes.warn("explorer.rollout_model.engine_type vllm needs a GPU: torch generates instead")
        engine = "torch"
    elif engine not in _ROLLOUT:
        what = f"{engine} cannot be run yet"
        notes.wrong(("explorer", "rollout_model", "engine_type"), what, "write torch", Unsupported)
    if experiment.model.external_model.enable:
        what = "an external model can only be benchmarked, which rftd cannot do yet"
        notes.wrong(("model", "external_model", "enable"), what, "write enable: false", Unsupported)
    if model.engine_num > limits.WORKER_SLOTS:
        what = f"is {model.engine_num}, and an experiment has {limits.WORKER_SLOTS} slots for explorers"
        fix = f"write at most {limits.WORKER_SLOTS}, and raise explorer.runner_per_model"
        notes.wrong(("explorer", "rollout_model", "engine_num"), what, fix)
    parallel = model.tensor_parallel_size * model.data_parallel_size * model.pipeline_parallel_size
    if parallel > 1 and not gpus:
        notes.warn("explorer.rollout_model: tensor, data and pipeline parallel sizes have no effect without GPUs")
    args, lifted = _lift(model.extra_engine_args, ("threads",), ROLLOUT_ARGS, notes)
    if (taken := rollout_engines.arguments_of(engine)) is not None:
        check_struct(args, taken, ROLLOUT_ARGS, f"the {engine} engine", notes, beside=("threads",))
    return RolloutSpec(
        engine=engine,
        explorers=model.engine_num,
        concurrency=given.runner_per_model,
        max_timeout_s=given.max_timeout,
        max_retry_times=given.max_retry_times,
        dtype=_TORCH_DTYPE if model.dtype == "auto" or not (gpus or "dtype" in model.model_fields_set) else model.dtype,
        seed=model.seed if "seed" in model.model_fields_set else experiment.seed,
        threads=lifted.get("threads", 1),
        engine_args=args,
        environment=tuple(sorted(given.env_vars)),
    )


def resolve_trainer(experiment: Experiment, model_tokens: int, gpus: int, notes: Notes) -> TrainerSpec:
    """The trainer of one stage."""
    given = experiment.trainer
    engine: str = given.trainer_type
    if experiment.model.tinker.enable:
        engine = "tinker"
    elif engine == "verl" and not gpus:
        notes.warn("trainer.trainer_type verl needs a GPU: torch trains instead")
        engine = "torch"
    args, lifted = _lift(given.engine_args, ("threads",), TRAINER_ARGS, notes)
    ulysses = max(given.ulysses_sequence_parallel_size, 1)
    if given.ulysses_sequence_parallel_size > 1 and not gpus:
        notes.warn("trainer.ulysses_sequence_parallel_size has no effect without GPUs")
    dtype = args.pop("dtype", _TORCH_DTYPE)
    if dtype not in _TRAINED_IN:
        what = f"is {dtype!r}, and the trainer computes in {' or '.join(_TRAINED_IN)}"
        notes.wrong((*TRAINER_ARGS, "dtype"), what, f"write {_TORCH_DTYPE}", WrongValue)
        dtype = _TORCH_DTYPE
    if (taken := trainer_engines.arguments_of(engine)) is not None:
        check_struct(args, taken, TRAINER_ARGS, f"the {engine} engine", notes, beside=("threads", "dtype"))
    return TrainerSpec(
        engine=engine,
        save_interval=given.save_interval,
        max_checkpoints_to_keep=given.max_checkpoints_to_keep,
        save_hf=given.save_hf_checkpoint,
        max_tokens_per_micro_batch=given.max_token_len_per_gpu
        or max(MIN_MICRO_BATCH_TOKENS, math.ceil(2 * model_tokens / ulysses)),
        threads=lifted.get("threads", 1),
        dtype=dtype,
        max_nonfinite_steps=given.max_nonfinite_steps,
        engine_args=args,
    )


def check_cluster(experiment: Experiment, gpus: int, notes: Notes) -> None:
    """Says what the cluster's counts become, and refuses counts that leave the trainer nothing."""
    nodes = experiment.cluster.node_num or 0
    per_node = experiment.cluster.gpu_per_node or 0
    slots = nodes * per_node
    if not slots:
        return
    model = experiment.explorer.rollout_model
    parallel = model.tensor_parallel_size * model.data_parallel_size * model.pipeline_parallel_size
    explorers = model.engine_num * parallel
    if slots > 1 and explorers >= slots:
        what = f"{nodes} x {per_node} = {slots} slots, and explorers take {explorers}: none is left for the trainer"
        notes.wrong(("cluster", "gpu_per_node"), what, "raise it, or lower explorer.rollout_model.engine_num")
    elif not gpus:
        notes.warn(
            f"no GPU: cluster {nodes} x {per_node} counts as {slots} process slots, "
            f"{model.engine_num} for explorers, the trainer takes one"
        )


def _lift(
    args: dict[str, Any], names: tuple[str, ...], path: FieldPath, notes: Notes
) -> tuple[dict[str, Any], dict[str, int]]:
    """Counts that the specification has a field for, taken out of the engine's own arguments."""
    rest = dict(args)
    lifted = {}
    for name in names:
        if name not in rest:
            continue
        value = rest.pop(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 4096:
            notes.wrong((*path, name), "must be a whole number between 1 and 4096")
        else:
            lifted[name] = value
    return rest, lifted
