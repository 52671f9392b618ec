"""A model folder for transformers from weights spread over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from rftd.workers.engines.learner.model import write_hf
from rftd.workers.engines.learner.saving import round_export
from rftd.workers.engines.ranks.spool import SpooledSnapshot, new_spool, write_shards
from rftd.workers.engines.ranks.spread import pieces_on_first
from rftd.workers.models.pretrained import outlined_model
from rftd.workers.weights.tensor_bytes import TensorLayout
from rftd.workers.weights.torch_bytes import dtype_name, tensors_of


def write_hf_folder(folder: Path, tensors: Mapping[str, Tensor], base: Path) -> None:
    """Writes a folder for transformers, in the base's dtype; all ranks call it, and rank 0 writes.

    transformers needs all weights at once: they are mapped from an unnamed file, so that no rank holds more than a
    piece of other ranks' parts in memory.
    """
    pieces = pieces_on_first(tensors)
    if dist.get_rank():
        for _ in pieces:
            pass
        return
    folder.mkdir(parents=True, exist_ok=True)
    layouts = {name: TensorLayout(dtype_name(tensor), tuple(tensor.shape)) for name, tensor in tensors.items()}
    with new_spool(str(folder)) as file:
        write_shards(file.fileno(), layouts, pieces)
        weights = tensors_of(SpooledSnapshot(file, exact=True, tied={}).weights())
        # The outline of the base: the model that trains has classes of FSDP's, whose names no config should have.
        write_hf(outlined_model(base, dtype=torch.float32), folder, base, weights=weights)
    round_export(folder, base)
