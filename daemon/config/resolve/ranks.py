"""Ranks of a trainer: sizes by which ranks share weights and sequences, checked against the number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Contradiction, Notes, Unsupported, WrongValue
from rftd.daemon.config.resolve.megatron import STRATEGY, refuse_missing
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.trainer import Trainer
from rftd.daemon.config.verl.table import engine_arguments
from rftd.streams.spec.spec import TrainerSpec
from rftd.workers.devices.host import Host

_ARGS: Final[FieldPath] = ("trainer", "engine_args")
_CONFIG: Final[FieldPath] = ("trainer", "trainer_config")
_SEQUENCES: Final = "ulysses_sequence_parallel_size"
_WEIGHTS: Final = "fsdp_size"
_TENSORS: Final = "tensor_model_parallel_size"
_PADDING_FREE: Final = "use_remove_padding"
_KERNELS: Final = "flash-attn"


def check_ranks(trainer: TrainerSpec, section: Trainer, host: Host, *, on_gpus: bool, notes: Notes) -> TrainerSpec:
    """Returns the trainer, with an issue if verl cannot divide weights or sequences over its ranks; other engines are
    unchanged.

    An uninspected host is not checked. `section` is the file's section, to name the field of a requested size;
    `on_gpus` is True if the trainer computes on GPUs.
    """
    if trainer.engine != "verl" or not host.seen:
        return trainer
    arguments = trainer.engine_args
    ranks = trainer.devices or _number(arguments, "ranks", 1)
    _check_weights(_number(arguments, _WEIGHTS, -1), ranks, _field_of(_WEIGHTS, section), notes)
    shared = _number(arguments, _SEQUENCES, 1)
    if shared > 1 and ranks % shared:
        problem = (
            f"is {shared}, but the trainer has {_counted(ranks)}, which it does not divide (ranks share sequences)"
        )
        notes.wrong(_field_of(_SEQUENCES, section), problem, f"write {_divisors(ranks)}", WrongValue)
    if arguments.get("strategy") == STRATEGY:
        if "strategy" in section.engine_args:
            refuse_missing((*_ARGS, "strategy"), host, notes)
        parts = _number(arguments, _TENSORS, 1)
        if ranks % parts:
            problem = (
                f"is {parts}, but the trainer has {_counted(ranks)}, which it does not divide (ranks share tensors)"
            )
            notes.wrong(_field_of(_TENSORS, section), problem, f"write {_divisors(ranks)}", WrongValue)
        return trainer
    _check_kernels(arguments, section, host, on_gpus, notes)
    if shared > 1 and _PADDING_FREE not in arguments:
        # The guide's default: sequences are split between ranks if not padded.
        return msgspec.structs.replace(trainer, engine_args={**arguments, _PADDING_FREE: True})
    if shared > 1 and arguments[_PADDING_FREE] is False:
        problem = f"is false, but {shared} ranks share each sequence, which requires texts without padding"
        notes.wrong(
            _field_of(_PADDING_FREE, section), problem, "write true, or let no ranks share a sequence", Contradiction
        )
    return trainer


def _check_weights(spread: int, ranks: int, field_path: FieldPath, notes: Notes) -> None:
    if spread < 0 or (spread and ranks % spread == 0):  # values below -1 are refused by the type
        return
    why = f"are sharded over {spread} ranks each" if spread else "cannot be sharded over 0 ranks"
    problem = f"is {spread}, but the trainer has {_counted(ranks)}: weights {why}"
    notes.wrong(field_path, problem, f"write -1 for all, or {_divisors(ranks)}", WrongValue)


def _check_kernels(arguments: Mapping[str, Any], section: Trainer, host: Host, on_gpus: bool, notes: Notes) -> None:
    """Refuses settings needing flash-attn where unavailable; the guide's fields were already reported as idle."""
    if on_gpus and _KERNELS in host.packages:
        return
    missing = f"{_KERNELS} is not installed" if on_gpus else "the trainer computes on the CPU"
    requested = {
        _SEQUENCES: _number(arguments, _SEQUENCES, 1) > 1,
        _PADDING_FREE: arguments.get(_PADDING_FREE) is True,
        "attn_implementation": arguments.get("attn_implementation") == "flash_attention_2",
    }
    for name in (name for name, is_requested in requested.items() if is_requested):
        problem = f"is {arguments[name]!r}, which needs {_KERNELS} on a GPU, but {missing}"
        notes.wrong(_field_of(name, section), problem, "leave it out", Unsupported)


def _field_of(name: str, section: Trainer) -> FieldPath:
    """Returns the field setting an argument of the engine: below `engine_args`, `trainer`, or verl's own tree."""
    if name in section.engine_args:
        return (*_ARGS, name)
    if name in section.model_fields_set:
        return ("trainer", name)
    if name in section.megatron.model_fields_set:
        return ("trainer", STRATEGY, name)
    paths = (path for path, argument in engine_arguments().items() if argument == name)
    return next(((*_CONFIG, *path) for path in paths if _contains(section.trainer_config or {}, path)), (*_ARGS, name))


def _contains(config: Mapping[str, Any], path: FieldPath) -> bool:
    node: Any = config if path[0] in config else {path[0]: config}  # the first level may be left out
    for key in path:
        if not isinstance(node, Mapping) or key not in node:
            return False
        node = node[key]
    return True


def _number(arguments: Mapping[str, Any], name: str, default: int) -> int:
    """Returns the argument, or the default for a non-number, refused by the type check."""
    argument = arguments.get(name, default)
    return argument if isinstance(argument, int) and not isinstance(argument, bool) else default


def _counted(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def _divisors(ranks: int) -> str:
    return " or ".join(str(divisor) for divisor in range(1, ranks + 1) if ranks % divisor == 0)


_NODES: FieldPath = ("trainer", "engine_args", "nodes")
_RANKS: FieldPath = ("trainer", "engine_args", "ranks")
_CLUSTER: FieldPath = ("cluster", "gpu_per_node")


def with_nodes(experiment: Experiment, trainer: TrainerSpec, host: Host, notes: Notes) -> TrainerSpec:
    """Returns the trainer with its number of nodes; impossible numbers are an issue.

    The current number of nodes is not checked: a cluster grows, and the launcher waits for missing nodes.
    """
    requested = trainer.engine_args.get("nodes", 1)
    if not isinstance(requested, int) or isinstance(requested, bool) or requested < 1:
        return trainer  # refused by the type check
    nodes = requested
    if host.clustered and host.gpus and trainer.devices > host.most_gpus and requested == 1:
        per_node = min(experiment.cluster.gpu_per_node or host.most_gpus, host.most_gpus)
        if trainer.devices % per_node:
            problem = f"the trainer needs {trainer.devices} GPUs in whole nodes, but a node has {per_node}"
            where = _CLUSTER if experiment.cluster.node_num else _RANKS
            notes.wrong(where, problem, f"leave a multiple of {per_node} GPUs, or at most {per_node}", WrongValue)
            return trainer
        nodes = trainer.devices // per_node
    if nodes == 1:
        return trainer
    if not host.clustered and host.seen:
        problem = f"is {nodes}, but workers run only on this machine"
        notes.wrong(
            _NODES, problem, "leave it out, or submit it to a daemon that serves with --workers ray", Unsupported
        )
        return trainer
    ranks = trainer.devices or trainer.engine_args.get("ranks", 0)
    if not isinstance(ranks, int) or not ranks or ranks % nodes:
        problem = f"is {nodes}, but the trainer has {ranks or 'no'} ranks, which it does not divide"
        notes.wrong(
            _NODES, problem, "write a divisor of trainer.engine_args.ranks, or of the trainer's GPUs", WrongValue
        )
        return trainer
    return msgspec.structs.replace(trainer, engine_args={**trainer.engine_args, "nodes": nodes})
