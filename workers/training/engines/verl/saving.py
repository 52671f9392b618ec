"""The files of a checkpoint's `actor` and `critic`, as the engine `torch` has them: either resumes from the other's.

model.safetensors      weights and buffers; left out if huggingface/ holds them
huggingface/           the model as transformers reads it, in float32
optimizer.safetensors  the optimizer's tensors, by parameter
reference.safetensors  the frozen reference, if the objective needs one
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rftd.ops.errors import DataError
from rftd.workers.models.pretrained import outlined_model
from rftd.workers.training.engines.torch import saving
from rftd.workers.training.engines.torch.model import write_hf
from rftd.workers.training.engines.verl.optimizer import ShardedOptimizer
from rftd.workers.training.engines.verl.shards import local, one_by_one, part_of


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes the whole tensors into one file; all ranks call it. Raises OSError."""
    kept = _gathered(tensors)
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        saving.write_tensors(path, kept)


def write_folder(folder: Path, tensors: Mapping[str, Tensor], base: Path) -> None:
    """Writes a folder that transformers loads; all ranks call it."""
    kept = _gathered(tensors)
    if dist.get_rank() == 0:
        # The outline of the base: the model that trains has classes of FSDP's, whose names no config should have.
        write_hf(outlined_model(base, dtype=torch.float32), folder, base, weights=kept)


@torch.no_grad()
def read_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], where: Path) -> None:
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


@torch.no_grad()
def read_state(optimizer: ShardedOptimizer, path: Path) -> None:
    """Puts the optimizer's state back. Raises DataError if the file is missing, damaged or of other parameters."""
    tensors = saving.read_tensors(path)
    own = optimizer.begin_state({name: tuple(value.shape) for name, value in tensors.items()})
    read_weights(own, tensors, path)


def _gathered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The whole tensors on the host of the first rank, gathered one by one; elsewhere none."""
    kept: dict[str, Any] = {}
    for name, tensor in one_by_one(tensors):
        if dist.get_rank() == 0:
            kept[name] = tensor.detach().cpu()
    return kept
