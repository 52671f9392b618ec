"""torch's tensors as parts of a checkpoint, whether complete on every rank or spread over ranks.

Saving and loading happen on all ranks of the default process group at once; without a group there is one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeGuard

import msgspec
import torch
from torch import Tensor

from rftd.ops.decoding import json_decoder
from rftd.workers.engines.ranks.collectives import gather_bytes, raise_on_all_ranks, this_rank
from rftd.workers.weights.shards import Shard, ShardedTensors, ShardManifest, write_manifest, write_part
from rftd.workers.weights.tensor_bytes import TensorLayout
from rftd.workers.weights.torch_bytes import dtype_name, memory, tensors_of

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def save_shards(folder: Path, kind: str, tensors: Mapping[str, Tensor], *, at_once: int = 0) -> None:
    """Writes the tensors into `folder`, each rank its parts; the manifest exists once all ranks have returned.

    All ranks must see `folder`. `at_once`: number of consecutive ranks writing at a time; 0: all of them. Raises
    OSError, WorkError.
    """
    rank, ranks = this_rank()
    group_size = at_once or ranks
    own_manifest = ShardManifest(ranks=ranks, files=(), tensors=())
    for first in range(0, ranks, group_size):
        if first <= rank < first + group_size:
            own_manifest = write_part(folder, kind, shards_of(tensors, rank, ranks), rank=rank, ranks=ranks)
        if group_size < ranks:
            gather_bytes(b"")  # a barrier before the next group
    shares = gather_bytes(msgspec.json.encode(own_manifest))
    if rank == 0:
        write_manifest(folder, kind, [json_decoder(ShardManifest).decode(encoded) for encoded in shares])


def load_shards(folder: Path, kind: str, likes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns new tensors with the saved numbers, spread over ranks and devices as `likes` are.

    Raises DataError, on all ranks, if files are missing, damaged or of another model.
    """
    rank, ranks = this_rank()
    with raise_on_all_ranks():
        saved = ShardedTensors.open(folder, kind)
        saved.check_fits({name: _layout(like_tensor) for name, like_tensor in likes.items()})
        saved.verify(reader=rank, readers=ranks)
        tensors = {name: _read(saved, name, like) for name, like in likes.items()}
    return tensors


def load_whole(folder: Path, kind: str) -> dict[str, Tensor]:
    """Reads all tensors, complete and on the host of each rank. Raises DataError if files are missing or damaged."""
    rank, ranks = this_rank()
    with raise_on_all_ranks():
        saved = ShardedTensors.open(folder, kind)
        saved.verify(reader=rank, readers=ranks)
        tensors = tensors_of({name: saved.whole(name) for name in saved.layouts()})
    return tensors


def shards_of(
    tensors: Mapping[str, Tensor], rank: int, ranks: int, *, dtypes: Mapping[str, torch.dtype] = MappingProxyType({})
) -> list[Shard]:
    """Returns the parts written by this rank: its local part of a DTensor, its share of the rows of other tensors.

    Tensors named in `dtypes` are rounded to that dtype, each part when it is read.
    """
    shards = []
    for number, (name, tensor) in enumerate(tensors.items()):
        local = tensor
        offset = [0] * tensor.ndim
        mine = True
        if is_spread(tensor):
            box = box_of(tensor)
            local = tensor.to_local()
            offset = list(box.offset)
            mine = box.first_copy
        elif tensor.ndim and tensor.shape[0] >= ranks:
            offset[0] = tensor.shape[0] * rank // ranks
            local = tensor[offset[0] : tensor.shape[0] * (rank + 1) // ranks]
        else:
            mine = number % ranks == rank
        if mine:
            dtype = dtypes.get(name, tensor.dtype)
            whole = TensorLayout(str(dtype).removeprefix("torch."), tuple(tensor.shape))
            shards.append(Shard(name, whole, tuple(offset), tuple(local.shape), partial(_memory_as, dtype, local)))
    return shards


def _memory_as(dtype: torch.dtype, tensor: Tensor) -> memoryview:
    """Returns the bytes of a tensor converted to a dtype."""
    return memory(tensor.to(dtype))


def is_spread(tensor: Tensor) -> TypeGuard[DTensor]:
    """True for a tensor with parts on several ranks (a DTensor)."""
    # By the attribute: importing DTensor takes a second, and has already happened wherever one exists.
    return hasattr(tensor, "device_mesh")


class LocalBox(msgspec.Struct, frozen=True):
    """The position of this rank's part of a DTensor."""

    offset: tuple[int, ...]
    """Index of the part's first number in the tensor, by dimension."""
    first_copy: bool
    """True on one of the ranks with equal parts."""


def box_of(tensor: DTensor) -> LocalBox:
    """Returns the position of this rank's part within the complete tensor. Raises ValueError for a tensor of partial
    sums.
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor import Shard as SplitAlong

    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None, "the rank is not part of the tensor's mesh"
    offset = [0] * tensor.ndim
    extent = list(tensor.shape)
    first = True
    for at, placement, size in zip(coordinate, tensor.placements, tensor.device_mesh.shape, strict=True):
        if isinstance(placement, SplitAlong):
            dim = placement.dim
            step = -(-extent[dim] // size)
            begin = min(at * step, extent[dim])
            offset[dim] += begin
            extent[dim] = min(step, extent[dim] - begin)
        elif isinstance(placement, Replicate):
            first = first and at == 0
        else:
            raise ValueError(f"a tensor placed as {placement} has no parts")
    return LocalBox(tuple(offset), first)


def _read(saved: ShardedTensors, name: str, like: Tensor) -> Tensor:
    """Reads a saved tensor in the distribution of `like`, onto its device."""
    if not is_spread(like):
        whole = tensors_of({name: saved.whole(name)})[name]
        return whole.to(like.device, copy=True)
    from torch.distributed.tensor import DTensor

    local = like.to_local()
    saved_local = tensors_of({name: saved.read(name, box_of(like).offset, tuple(local.shape))})[name]
    return DTensor.from_local(
        saved_local.to(local.device, copy=True),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def _layout(tensor: Tensor) -> TensorLayout:
    """Returns dtype and shape of a tensor."""
    return TensorLayout(dtype_name(tensor), tuple(tensor.shape))
