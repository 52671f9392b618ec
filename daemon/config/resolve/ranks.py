"""The ranks of a trainer: sizes by which they share weights and sequences, held against how many there will be."""

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


def check_ranks(trainer: TrainerSpec, written: Trainer, host: Host, *, on_gpus: bool, notes: Notes) -> TrainerSpec:
    """The trainer of verl; what its ranks cannot be is refused with the numbers. Another one is returned as it is.

    Nothing is known of a host that nobody has looked at. `written` is the file's section, which is named where it asks
    for a size; `on_gpus` is True if the trainer computes on GPUs.
    """
    if trainer.engine != "verl" or not host.seen:
        return trainer
    given = trainer.engine_args
    ranks = trainer.devices or _number(given, "ranks", 1)
    _check_weights(_number(given, _WEIGHTS, -1), ranks, _place(_WEIGHTS, written), notes)
    shared = _number(given, _SEQUENCES, 1)
    if shared > 1 and ranks % shared:
        what = f"is {shared}, and the trainer has {_counted(ranks)}, of which so many cannot share each sequence"
        notes.wrong(_place(_SEQUENCES, written), what, f"write {_divisors(ranks)}", WrongValue)
    if given.get("strategy") == STRATEGY:
        if "strategy" in written.engine_args:
            refuse_missing((*_ARGS, "strategy"), host, notes)
        parts = _number(given, _TENSORS, 1)
        if ranks % parts:
            what = f"is {parts}, and the trainer has {_counted(ranks)}, of which so many cannot share each tensor"
            notes.wrong(_place(_TENSORS, written), what, f"write {_divisors(ranks)}", WrongValue)
        return trainer
    _check_kernels(given, written, host, on_gpus, notes)
    if shared > 1 and _PADDING_FREE not in given:
        # The guide's own default: sequences are cut between ranks where they are not padded.
        return msgspec.structs.replace(trainer, engine_args={**given, _PADDING_FREE: True})
    if shared > 1 and given[_PADDING_FREE] is False:
        what = f"is false, and {shared} ranks share each sequence, which is cut where texts are not padded"
        notes.wrong(_place(_PADDING_FREE, written), what, "write true, or let no ranks share a sequence", Contradiction)
    return trainer


def _check_weights(spread: int, ranks: int, place: FieldPath, notes: Notes) -> None:
    if spread < 0 or (spread and ranks % spread == 0):  # below -1 its type has refused it
        return
    why = f"are spread over {spread} at a time" if spread else "cannot be spread over none"
    what = f"is {spread}, and the trainer has {_counted(ranks)}: weights {why}"
    notes.wrong(place, what, f"write -1 for all, or {_divisors(ranks)}", WrongValue)


def _check_kernels(given: Mapping[str, Any], written: Trainer, host: Host, on_gpus: bool, notes: Notes) -> None:
    """Refuses what needs flash-attn where it cannot run; of the guide's fields it was said before that they do not."""
    if on_gpus and _KERNELS in host.packages:
        return
    missing = f"{_KERNELS} is not installed" if on_gpus else "the trainer computes on the CPU"
    asked = {
        _SEQUENCES: _number(given, _SEQUENCES, 1) > 1,
        _PADDING_FREE: given.get(_PADDING_FREE) is True,
        "attn_implementation": given.get("attn_implementation") == "flash_attention_2",
    }
    for name in (name for name, wanted in asked.items() if wanted):
        what = f"is {given[name]!r}, which needs {_KERNELS} on a GPU, and {missing}"
        notes.wrong(_place(name, written), what, "leave it out", Unsupported)


def _place(name: str, written: Trainer) -> FieldPath:
    """The place where the file has an argument of the engine: below `engine_args`, `trainer`, or verl's own tree."""
    if name in written.engine_args:
        return (*_ARGS, name)
    if name in written.model_fields_set:
        return ("trainer", name)
    if name in written.megatron.model_fields_set:
        return ("trainer", STRATEGY, name)
    paths = (path for path, argument in engine_arguments().items() if argument == name)
    return next(((*_CONFIG, *path) for path in paths if _holds(written.trainer_config or {}, path)), (*_ARGS, name))


def _holds(config: Mapping[str, Any], path: FieldPath) -> bool:
    node: Any = config if path[0] in config else {path[0]: config}  # the first level may be left out
    for key in path:
        if not isinstance(node, Mapping) or key not in node:
            return False
        node = node[key]
    return True


def _number(given: Mapping[str, Any], name: str, default: int) -> int:
    """The argument, or the default for one that is no number: whoever checks types has refused it."""
    value = given.get(name, default)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _counted(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def _divisors(ranks: int) -> str:
    return " or ".join(str(each) for each in range(1, ranks + 1) if ranks % each == 0)


_NODES: FieldPath = ("trainer", "engine_args", "nodes")
_RANKS: FieldPath = ("trainer", "engine_args", "ranks")
_CLUSTER: FieldPath = ("cluster", "gpu_per_node")


def with_nodes(experiment: Experiment, trainer: TrainerSpec, host: Host, notes: Notes) -> TrainerSpec:
    """The trainer with the number of its nodes; numbers that no cluster or no sharing of ranks allows are refused.

    How many nodes there are is not asked: a cluster grows, and the launcher waits for those that are not there.
    """
    written = trainer.engine_args.get("nodes", 1)
    if not isinstance(written, int) or isinstance(written, bool) or written < 1:
        return trainer  # whoever checks types has refused it
    nodes = written
    if host.clustered and host.gpus and trainer.devices > host.most_gpus and written == 1:
        per_node = min(experiment.cluster.gpu_per_node or host.most_gpus, host.most_gpus)
        if trainer.devices % per_node:
            what = f"the trainer takes {trainer.devices} GPUs, and a node has {per_node}; it takes whole nodes"
            where = _CLUSTER if experiment.cluster.node_num else _RANKS
            notes.wrong(where, what, f"leave it a multiple of {per_node} GPUs, or at most {per_node}", WrongValue)
            return trainer
        nodes = trainer.devices // per_node
    if nodes == 1:
        return trainer
    if not host.clustered and host.seen:
        what = f"is {nodes}, and workers run on this machine alone"
        notes.wrong(_NODES, what, "leave it out, or submit it to a daemon that serves with --workers ray", Unsupported)
        return trainer
    ranks = trainer.devices or trainer.engine_args.get("ranks", 0)
    if not isinstance(ranks, int) or not ranks or ranks % nodes:
        what = f"is {nodes}, and the trainer has {ranks or 'no'} ranks: as many are on each node"
        notes.wrong(_NODES, what, "write a divisor of trainer.engine_args.ranks, or of the trainer's GPUs", WrongValue)
        return trainer
    return msgspec.structs.replace(trainer, engine_args={**trainer.engine_args, "nodes": nodes})
