"""The files of a checkpoint's `actor` and `critic`: each rank writes its parts, and any number of ranks reads them.

model.shards.json      weights and buffers, with a file of each rank beside it; left out if huggingface/ holds them
model.safetensors      instead of them, if there is one rank
config.json, ...       beside either, with the tokenizer: of one rank, `actor` is a model as transformers reads it
huggingface/           the model as transformers reads it, in float32
lora_adapter/          instead of the weights, if an adapter is trained: as peft reads it, with the tokenizer
optimizer.shards.json  the optimizer's tensors, by parameter
reference.shards.json  the frozen reference, if the objective needs one

Nothing is pickled. What the engine `torch` wrote is read too: a run may go on with another engine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from rftd.ops.errors import DataError
from rftd.workers.engines.ranks.spool import SpooledSnapshot, new_spool, write_shards
from rftd.workers.engines.ranks.torch_shards import load_shards, save_shards
from rftd.workers.engines.torch.trainer import saving
from rftd.workers.engines.torch.trainer.model import write_description, write_hf
from rftd.workers.engines.verl.optimizer import ShardedOptimizer
from rftd.workers.engines.verl.shards import local, one_by_one, part_of, to_first
from rftd.workers.models.pretrained import outlined_model
from rftd.workers.weights.shards import ShardedTensors
from rftd.workers.weights.tensor_bytes import TensorLayout
from rftd.workers.weights.torch_bytes import dtype_name, tensors_of

SaveStrategy: TypeAlias = Literal["unrestricted", "single_thread", "single_process", "single_node"]


def write(folder: Path, kind: str, tensors: Mapping[str, Tensor], strategy: SaveStrategy) -> None:
    """Writes each rank's parts of the tensors; all ranks call it. Raises OSError, WorkError."""
    folder.mkdir(parents=True, exist_ok=True)
    save_shards(folder, kind, tensors, at_once=_at_once(strategy))


def _at_once(strategy: SaveStrategy) -> int:
    """The ranks that write at a time; 0: all. Each of them writes on one thread."""
    if strategy == "single_node":
        # Set for each rank by whoever started it; without it all are of one node.
        return int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    return 0 if strategy == "unrestricted" else 1


def write_weights(
    actor: Path, tensors: Mapping[str, Tensor], strategy: SaveStrategy, base: Path, *, module: Any
) -> None:
    """Writes the weights, whole if one rank has them all, and all that the folder of `module` has beside them."""
    if dist.get_world_size() == 1:
        saving.write_file(actor / "model.safetensors", dict(one_by_one(tensors)))
    else:
        write(actor, "model", tensors, strategy)
    if dist.get_rank() == 0:
        # The model that trains has classes of FSDP's, which are named after those of transformers.
        write_description(module.config, actor, base, architecture=type(module).__name__.removeprefix("FSDP"))


def write_hf_folder(folder: Path, tensors: Mapping[str, Tensor], base: Path) -> None:
    """Writes a folder that transformers loads, in the base's dtype; all ranks call it, and the first one writes.

    The weights go through a file without a name beside it, for transformers wants to see all of them: no rank has more
    than a piece of what others hold on its host.
    """
    pieces = to_first(tensors)
    if dist.get_rank():
        for _ in pieces:
            pass
        return
    folder.mkdir(parents=True, exist_ok=True)
    layouts = {name: TensorLayout(dtype_name(each), tuple(each.shape)) for name, each in tensors.items()}
    with new_spool(str(folder)) as file:
        write_shards(file.fileno(), layouts, pieces)
        kept = tensors_of(SpooledSnapshot(file, exact=True, tied={}).weights())
        # The outline of the base: the model that trains has classes of FSDP's, whose names no config should have.
        write_hf(outlined_model(base, dtype=torch.float32), folder, base, weights=kept)
    saving.round_export(folder, base)


def holds(folder: Path, kind: str) -> bool:
    """True if tensors of this kind were written there."""
    return (folder / f"{kind}.shards.json").is_file() or (folder / f"{kind}.safetensors").is_file()


@torch.no_grad()
def read(folder: Path, kind: str, own: Mapping[str, Tensor]) -> None:
    """Copies what was written over this rank's parts. Raises DataError, nothing copied, if it does not fit."""
    if (folder / f"{kind}.shards.json").is_file():
        found = load_shards(folder, kind, own)
        for name, value in own.items():
            local(value).copy_(local(found[name]))
    else:
        copy_parts(own, saving.read_tensors(folder / f"{kind}.safetensors"), folder)


def read_policy(actor: Path, own: Mapping[str, Tensor], *, trust_remote_code: bool) -> None:
    """Copies the policy's weights over this rank's parts, from wherever the checkpoint has them. Raises DataError."""
    if holds(actor, "model"):
        read(actor, "model", own)
    else:
        copy_parts(own, saving.read_weights(actor, trust_remote_code=trust_remote_code), actor)


@torch.no_grad()
def read_state(folder: Path, optimizer: ShardedOptimizer) -> None:
    """Puts the optimizer's state back. Raises DataError if it is missing, damaged or of other parameters."""
    if (folder / "optimizer.shards.json").is_file():
        layouts = ShardedTensors.open(folder, "optimizer").layouts()
        shapes = {name: layout.shape for name, layout in layouts.items()}
    else:
        shapes = {
            name: tuple(value.shape) for name, value in saving.read_tensors(folder / "optimizer.safetensors").items()
        }
    read(folder, "optimizer", optimizer.begin_state(shapes))


@torch.no_grad()
def copy_parts(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], where: Path) -> None:
    """Copies whole tensors over this rank's parts. Raises DataError, nothing copied, if names or shapes differ."""
    wrong = sorted(own.keys() ^ weights.keys()) or [
        name for name, value in own.items() if value.shape != weights[name].shape
    ]
    if wrong:
        raise DataError(
            f"the weights do not fit the model, beginning with {wrong[0]!r}",
            where=str(where),
            fix="resume with the model that the checkpoint was made from",
        )
    for name, value in own.items():
        local(value).copy_(local(part_of(weights[name], value)))
