"""Rules for the GPUs: the number of engines for explorers, and of GPUs for the trainer and a reward model."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from rftd.daemon.config.verl.draft import ExperimentDraft
from rftd.daemon.config.verl.pacing import Program
from rftd.ops import limits

_ROLLOUT: Final = "actor_rollout_ref.rollout"
"""Section of the rollout engine in veRL's configuration."""
_ACTOR: Final = "actor_rollout_ref.actor"
"""Section of the actor in veRL's configuration."""
_ENGINE: Final = "explorer.rollout_model"
"""Section of the explorers' engine in the experiment file."""
_REWARD_MODEL_SECTION: Final = "explorer.auxiliary_models[0]"
"""Section of the reward model in the experiment file."""
_PARALLEL: Final = f"{_ROLLOUT}.tensor_model_parallel_size"
"""Key for the tensor-parallel GPUs of an engine."""
_SHARED: Final = (f"{_ROLLOUT}.data_parallel_size", f"{_ROLLOUT}.pipeline_model_parallel_size")
"""Keys for the other GPUs of an engine."""
_ULYSSES: Final = f"{_ACTOR}.ulysses_sequence_parallel_size"
"""Key for the ranks that share a sequence."""
_SPREAD: Final = f"{_ACTOR}.fsdp_config.fsdp_size"
"""Key for the ranks over which the weights are spread."""
_TENSORS: Final = f"{_ACTOR}.megatron.tensor_model_parallel_size"
"""Key for Megatron's tensor-parallel ranks."""
_NODES: Final = "trainer.nnodes"
"""Key for the number of nodes."""
_PER_NODE: Final = "trainer.n_gpus_per_node"
"""Key for the GPUs of a node."""
_NODE_GPUS: Final = 8
"""Maximum number of GPUs per node for two halves on the same nodes."""
_EXPLORING: Final = ("rollout.nnodes", "rollout.n_gpus_per_node")
"""Keys for the nodes and GPUs of separate explorers."""


class GpuSplit(NamedTuple):
    """A division of a cluster's GPUs: engines first, the remainder for the trainer."""

    engines: int
    """Number of the explorers' engines."""
    per_engine: int
    """GPUs of one engine."""
    beside: int
    """Number of engines for the reward model."""
    trainer: int
    """GPUs of the trainer."""


class GpuGrid(NamedTuple):
    """A cluster of equal nodes, whose GPUs are to be divided."""

    nodes: int
    """Number of nodes."""
    per_node: int
    """GPUs of each node."""

    @property
    def total(self) -> int:
        """GPUs of all nodes together."""
        return self.nodes * self.per_node


def split_gpus(cluster: GpuGrid, *, per_engine: int, beside: int, sizes: int = 1) -> GpuSplit | None:
    """Divides the GPUs: about a quarter for explorers, as many for a reward model, the remainder for the trainer; None
    if impossible.

    One engine needs `per_engine` GPUs, an engine of the reward model `beside` (0: no reward model). The trainer gets a
    multiple of `sizes`, on one node or on whole nodes.
    """
    quarter = cluster.total // 4
    reward_engines = max(1, quarter // beside) if beside else 0
    while quarter // per_engine > limits.WORKER_SLOTS and per_engine * 2 <= cluster.per_node:
        per_engine *= 2
    target_engines = max(1, quarter // per_engine)
    most = min(limits.WORKER_SLOTS, cluster.total // per_engine)
    for engines in sorted(range(1, most + 1), key=lambda count: (abs(count - target_engines), count)):
        trainer = cluster.total - engines * per_engine - reward_engines * beside
        whole = trainer <= cluster.per_node or trainer % cluster.per_node == 0
        if trainer >= 1 and whole and trainer % sizes == 0:
            return GpuSplit(engines, per_engine, reward_engines, trainer)
    return None


def put_gpus(draft: ExperimentDraft, program: Program) -> None:
    """Sets the fields of the cluster, of the explorers' engines and of a reward model."""
    engine = f"{_ROLLOUT}.name"
    if draft.value(engine) in (None, "vllm"):
        draft.drop(engine, "explorers generate with vllm unless another engine is written")
    else:
        draft.ask(engine, "explorers generate with vllm, or with torch: explorer.rollout_model.engine_type")
    beside = _put_reward_model(draft)
    training = GpuGrid(draft.number(_NODES), draft.number(_PER_NODE))
    per_engine = math.prod(draft.number(name) for name in (_PARALLEL, *_SHARED))
    if program != "synchronous":
        _put_halves(draft, training, per_engine, beside)
        return
    draft.put("cluster.node_num", training.nodes, _NODES)
    draft.put("cluster.gpu_per_node", training.per_node, _PER_NODE)
    if training.total == 1 and not beside:
        draft.put("mode", "colocate", note="explorer and trainer take turns on the one GPU")
        draft.put_given(f"{_ENGINE}.tensor_parallel_size", _PARALLEL)
        draft.put(f"{_ENGINE}.engine_num", 1)
        return
    split = _split(draft, training, per_engine, beside)
    if split is None:
        problem = f"{training.nodes} x {training.per_node} GPUs are too few for explorers of {per_engine} each"
        problem += f", a reward model of {beside}" if beside else ""
        name = _PARALLEL if draft.given(_PARALLEL) else _PER_NODE
        draft.contradict(name, f"{problem} and a trainer with separate GPUs", "give more GPUs, or smaller engines")
        return
    _put_engines(draft, split, per_engine, beside)
    text = f"(veRL uses the same GPUs alternately. {_shares(split, beside)}: choose the fastest split)"
    draft.remark("needs a person", f"{_ENGINE}.engine_num", text)


def _shares(split: GpuSplit, beside: int) -> str:
    """Returns a comment naming the GPUs of explorers, reward model and trainer."""
    reward_share = f"the reward model {split.beside * beside}, " if beside else ""
    return f"GPUs: explorers {split.engines * split.per_engine}, {reward_share}the trainer {split.trainer}"


def _split(draft: ExperimentDraft, cluster: GpuGrid, per_engine: int, beside: int) -> GpuSplit | None:
    """Returns the division with the sizes set in the script; if impossible, with smaller ones, written to the draft."""
    sequences = draft.number(_ULYSSES)
    spread = draft.number(_SPREAD)
    megatron = draft.fields.get(("trainer", "trainer_strategy"), ("", ""))[0] == "megatron"
    tensors = draft.number(_TENSORS) if megatron else 1
    room = cluster.total - beside
    if spread >= cluster.total:
        spread = -1
        draft.put(f"trainer.trainer_config.{_SPREAD}", -1, _SPREAD, note="all of the trainer's GPUs, as there")
    engine = min(per_engine, cluster.per_node)
    while True:
        sizes = math.lcm(sequences, tensors, spread if spread > 0 else 1)
        split = split_gpus(cluster, per_engine=engine, beside=beside, sizes=sizes)
        if split is not None:
            break
        if spread > 0:
            spread = -1
            draft.put(
                f"trainer.trainer_config.{_SPREAD}",
                -1,
                _SPREAD,
                note="all: the script's size would leave no GPU for explorers",
            )
        elif sequences % 2 == 0 and (sequences >= room or engine % 2):
            sequences //= 2
        elif tensors % 2 == 0 and (tensors >= room or engine % 2):
            tensors //= 2
        elif engine % 2 == 0:
            engine //= 2
        else:
            return None
    if engine != per_engine and engine == split.per_engine:
        why = f"{per_engine} would leave no GPU for the trainer: {engine} is written"
        draft.remark("needs a person", _PARALLEL, f"({why}. Give more GPUs if that is few)")
    _put_smaller(draft, "trainer.ulysses_sequence_parallel_size", _ULYSSES, sequences)
    if megatron:
        _put_smaller(draft, f"trainer.trainer_config.{_TENSORS}", _TENSORS, tensors)
    return split


def _put_smaller(draft: ExperimentDraft, target: str, name: str, size: int) -> None:
    """Writes a size of the trainer that had to be reduced, with a report line."""
    if size != draft.number(name):
        why = f"{draft.number(name)} would leave explorers no GPU"
        draft.put(target, size, name, note=why)
        draft.remark("needs a person", name, f"({why}: {size} is written)")


def _put_engines(draft: ExperimentDraft, split: GpuSplit, per_engine: int, beside: int) -> None:
    """Sets the number and size of the explorers' engines, and the number of the reward model's."""
    names = [_PARALLEL, *(name for name in _SHARED if draft.given(name))]
    if draft.given(_PARALLEL) or split.per_engine > 1:
        by_tensors = split.per_engine == per_engine and len(names) > 1
        shared = "engines only split a model by tensor parallelism" if by_tensors else ""
        slots = f"{limits.WORKER_SLOTS} engines at most: each uses more GPUs" if split.per_engine > per_engine else ""
        draft.put(f"{_ENGINE}.tensor_parallel_size", split.per_engine, *names, note=slots or shared)
    for name in names[1:]:
        draft.done.setdefault(name, [("explorer", "rollout_model", "tensor_parallel_size")])
    draft.put(f"{_ENGINE}.engine_num", split.engines, note=_shares(split, beside))
    if beside:
        draft.put(f"{_REWARD_MODEL_SECTION}.engine_num", split.beside)


def _put_halves(draft: ExperimentDraft, training: GpuGrid, per_engine: int, beside: int) -> None:
    """Sets the GPUs of an asynchronous program, with separate explorers and trainer in veRL as well."""
    exploring = GpuGrid(*(draft.number(name) for name in _EXPLORING))
    names = (_NODES, _PER_NODE, *_EXPLORING)
    together = training.nodes == exploring.nodes and training.per_node + exploring.per_node <= _NODE_GPUS
    per_node = training.per_node + exploring.per_node if together else max(training.per_node, exploring.per_node)
    total = training.total + exploring.total
    if total % per_node:
        per_node = math.gcd(training.per_node, exploring.per_node)
    draft.put("cluster.node_num", total // per_node, *names, brief=True, note="explorers and trainer together")
    draft.put("cluster.gpu_per_node", per_node, *names, brief=True)
    if together and training.nodes > 1:
        draft.put("trainer.engine_args.nodes", training.nodes, _NODES, note="explorers have the rest of each")
    per_engine = min(per_engine, exploring.per_node)
    while exploring.total // per_engine > limits.WORKER_SLOTS and per_engine * 2 <= exploring.per_node:
        per_engine *= 2
    engines = min(limits.WORKER_SLOTS, (exploring.total - beside) // per_engine)
    if engines < 1:
        problem = f"{exploring.nodes} x {exploring.per_node} GPUs are too few for an engine of {per_engine}"
        draft.contradict(_PARALLEL, problem, "give rollout.n_gpus_per_node more, or make engines smaller")
        return
    trainer = total - engines * per_engine - beside
    split = GpuSplit(engines, per_engine, min(beside, 1), trainer)
    spread = draft.number(_SPREAD)
    if spread >= trainer or (spread > 0 and trainer % spread):
        draft.put(f"trainer.trainer_config.{_SPREAD}", -1, _SPREAD, note="all of the trainer's GPUs")
    _put_engines(draft, split, math.prod(draft.number(name) for name in (_PARALLEL, *_SHARED)), beside)


def _put_reward_model(draft: ExperimentDraft) -> int:
    """Sets the auxiliary model used as reward model; returns the GPUs of one engine, 0 without a reward model."""
    use = "reward_model.enable"
    path = "reward_model.model.path"
    parallel = "reward_model.rollout.tensor_model_parallel_size"
    if not draft.flag(use):
        for name in (use, path, parallel):
            draft.drop(name, "there is no reward model")
        return 0
    if draft.given(path) is None:
        draft.wrong(use, f"is true, and {path} names no model", f"give {path}")
        return 0
    size = draft.number(parallel) if draft.given(parallel) else 1
    draft.put(f"{_REWARD_MODEL_SECTION}.model_path", draft.value(path), path)
    draft.put(f"{_REWARD_MODEL_SECTION}.tensor_parallel_size", size, *([parallel] if draft.given(parallel) else []))
    draft.done.setdefault(use, []).append(("explorer", "auxiliary_models"))
    return size
