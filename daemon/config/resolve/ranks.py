"""Sizes by which a trainer's ranks share weights, sequences and tensors, checked against the number of ranks."""

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

_ENGINE_ARGS_PATH: Final[FieldPath] = ("trainer", "engine_args")
"""Field of the engine's arguments."""
_VERL_TREE_PATH: Final[FieldPath] = ("trainer", "trainer_config")
"""Field of veRL's tree."""
_SEQUENCE_RANKS: Final = "ulysses_sequence_parallel_size"
"""Argument of the engine: number of ranks sharing a sequence."""
_WEIGHT_RANKS: Final = "fsdp_size"
"""Argument of the engine: number of ranks sharing the weights; -1 for all."""
_TENSOR_RANKS: Final = "tensor_model_parallel_size"
"""Argument of the engine: number of ranks sharing a tensor, with Megatron's layers."""
_PADDING_FREE: Final = "use_remove_padding"
"""Argument of the engine: whether texts are trained without padding."""
_FLASH_ATTN: Final = "flash-attn"
"""Package required on a GPU for texts without padding and for shared sequences."""


def check_ranks(trainer: TrainerSpec, section: Trainer, host: Host, *, on_gpus: bool, notes: Notes) -> TrainerSpec:
    """Checks the sizes shared by veRL's ranks; returns the trainer, without padding of texts if ranks share sequences.

    Adds to `notes` an issue for a size of weights, sequences or tensors that does not divide the number of ranks, for
    settings that need flash-attn where it is missing, and for padded texts with shared sequences. Other engines and
    uninspected hosts are not checked. `section` is the file's section, to name the field of a size; `on_gpus` is True
    if the trainer computes on GPUs.
    """
    if trainer.engine != "verl" or not host.seen:
        return trainer
    arguments = trainer.engine_args
    ranks = trainer.devices or _number_argument(arguments, "ranks", 1)
    _check_weight_shards(
        _number_argument(arguments, _WEIGHT_RANKS, -1), ranks, _path_of_argument(_WEIGHT_RANKS, section), notes
    )
    shared = _number_argument(arguments, _SEQUENCE_RANKS, 1)
    if shared > 1 and ranks % shared:
        problem = (
            f"is {shared}, but the trainer has {_ranks_as_text(ranks)}, "
            "which it does not divide (ranks share sequences)"
        )
        notes.wrong(
            _path_of_argument(_SEQUENCE_RANKS, section), problem, f"write {_divisors_as_text(ranks)}", WrongValue
        )
    if arguments.get("strategy") == STRATEGY:
        if "strategy" in section.engine_args:
            refuse_missing((*_ENGINE_ARGS_PATH, "strategy"), host, notes)
        parts = _number_argument(arguments, _TENSOR_RANKS, 1)
        if ranks % parts:
            problem = (
                f"is {parts}, but the trainer has {_ranks_as_text(ranks)}, "
                "which it does not divide (ranks share tensors)"
            )
            notes.wrong(
                _path_of_argument(_TENSOR_RANKS, section), problem, f"write {_divisors_as_text(ranks)}", WrongValue
            )
        return trainer
    _check_flash_attn(arguments, section, host, on_gpus, notes)
    if shared > 1 and _PADDING_FREE not in arguments:
        # The guide's default: sequences are split between ranks if not padded.
        return msgspec.structs.replace(trainer, engine_args={**arguments, _PADDING_FREE: True})
    if shared > 1 and arguments[_PADDING_FREE] is False:
        problem = f"is false, but {shared} ranks share each sequence, which requires texts without padding"
        notes.wrong(
            _path_of_argument(_PADDING_FREE, section),
            problem,
            "write true, or let no ranks share a sequence",
            Contradiction,
        )
    return trainer


def _check_weight_shards(spread: int, ranks: int, field_path: FieldPath, notes: Notes) -> None:
    """Adds an issue if `spread`, the number of ranks sharing the weights, does not divide `ranks`."""
    if spread < 0 or (spread and ranks % spread == 0):  # values below -1 are refused by the type
        return
    why = f"are sharded over {spread} ranks each" if spread else "cannot be sharded over 0 ranks"
    problem = f"is {spread}, but the trainer has {_ranks_as_text(ranks)}: weights {why}"
    notes.wrong(field_path, problem, f"write -1 for all, or {_divisors_as_text(ranks)}", WrongValue)


def _check_flash_attn(arguments: Mapping[str, Any], section: Trainer, host: Host, on_gpus: bool, notes: Notes) -> None:
    """Adds an issue for arguments needing flash-attn where unavailable; fields of `trainer` were already reported as
    without effect.
    """
    if on_gpus and _FLASH_ATTN in host.packages:
        return
    missing = f"{_FLASH_ATTN} is not installed" if on_gpus else "the trainer computes on the CPU"
    requested = {
        _SEQUENCE_RANKS: _number_argument(arguments, _SEQUENCE_RANKS, 1) > 1,
        _PADDING_FREE: arguments.get(_PADDING_FREE) is True,
        "attn_implementation": arguments.get("attn_implementation") == "flash_attention_2",
    }
    for name in (name for name, is_requested in requested.items() if is_requested):
        problem = f"is {arguments[name]!r}, which needs {_FLASH_ATTN} on a GPU, but {missing}"
        notes.wrong(_path_of_argument(name, section), problem, "leave it out", Unsupported)


def _path_of_argument(name: str, section: Trainer) -> FieldPath:
    """Returns the path of the field setting an argument of the engine.

    Looks in `engine_args`, `trainer`, `trainer.megatron` and veRL's tree, in this order; by default a path below
    `engine_args`.
    """
    if name in section.engine_args:
        return (*_ENGINE_ARGS_PATH, name)
    if name in section.model_fields_set:
        return ("trainer", name)
    if name in section.megatron.model_fields_set:
        return ("trainer", STRATEGY, name)
    paths = (path for path, argument in engine_arguments().items() if argument == name)
    return next(
        ((*_VERL_TREE_PATH, *path) for path in paths if _tree_contains(section.trainer_config or {}, path)),
        (*_ENGINE_ARGS_PATH, name),
    )


def _tree_contains(config: Mapping[str, Any], path: FieldPath) -> bool:
    """True if veRL's tree in the file contains the path; the level `actor_rollout_ref` may be omitted in the file."""
    node: Any = config if path[0] in config else {path[0]: config}  # the first level may be left out
    for key in path:
        if not isinstance(node, Mapping) or key not in node:
            return False
        node = node[key]
    return True


def _number_argument(arguments: Mapping[str, Any], name: str, default: int) -> int:
    """Returns an argument as a whole number; `default` if unset or of another type, which the type check refuses."""
    argument = arguments.get(name, default)
    return argument if isinstance(argument, int) and not isinstance(argument, bool) else default


def _ranks_as_text(ranks: int) -> str:
    """Returns a number of ranks with its noun: "1 rank", "2 ranks"."""
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def _divisors_as_text(ranks: int) -> str:
    """Returns the divisors of a number of ranks, for advice: "1 or 2 or 4"."""
    return " or ".join(str(divisor) for divisor in range(1, ranks + 1) if ranks % divisor == 0)


_NODES_PATH: FieldPath = ("trainer", "engine_args", "nodes")
"""Path of the number of nodes."""
_RANKS_PATH: FieldPath = ("trainer", "engine_args", "ranks")
"""Path of the number of ranks."""
_GPUS_PER_NODE_PATH: FieldPath = ("cluster", "gpu_per_node")
"""Path of the number of GPUs per node."""


def with_nodes(experiment: Experiment, trainer: TrainerSpec, host: Host, notes: Notes) -> TrainerSpec:
    """Returns the trainer with its number of nodes; adds an issue for an impossible number.

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
            where = _GPUS_PER_NODE_PATH if experiment.cluster.node_num else _RANKS_PATH
            notes.wrong(where, problem, f"leave a multiple of {per_node} GPUs, or at most {per_node}", WrongValue)
            return trainer
        nodes = trainer.devices // per_node
    if nodes == 1:
        return trainer
    if not host.clustered and host.seen:
        problem = f"is {nodes}, but workers run only on this machine"
        notes.wrong(
            _NODES_PATH, problem, "leave it out, or submit it to a daemon that serves with --workers ray", Unsupported
        )
        return trainer
    ranks = trainer.devices or trainer.engine_args.get("ranks", 0)
    if not isinstance(ranks, int) or not ranks or ranks % nodes:
        problem = f"is {nodes}, but the trainer has {ranks or 'no'} ranks, which it does not divide"
        notes.wrong(
            _NODES_PATH, problem, "write a divisor of trainer.engine_args.ranks, or of the trainer's GPUs", WrongValue
        )
        return trainer
    return msgspec.structs.replace(trainer, engine_args={**trainer.engine_args, "nodes": nodes})
