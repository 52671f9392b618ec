"""The nodes of a trainer's ranks: as many as were written, or whole ones where one node has too few GPUs for them."""

from __future__ import annotations

import msgspec

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Notes, Unsupported, WrongValue
from rftd.daemon.config.schema.experiment import Experiment
from rftd.streams.spec import TrainerSpec
from rftd.workers.devices.host import Host

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
