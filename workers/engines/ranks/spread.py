"""Tensors with a part on each rank (DTensors): gathered, divided, digested."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from rftd.ops.decoding import json_decoder
from rftd.workers.engines.ranks.collectives import gather_bytes, move_to_first, this_rank
from rftd.workers.engines.ranks.torch_shards import LocalBox, box_of, is_spread
from rftd.workers.weights.checksum import Form, TensorDigest, digest_of
from rftd.workers.weights.shards import Shard
from rftd.workers.weights.tensor_bytes import TensorLayout
from rftd.workers.weights.tensor_digests import TensorDigests
from rftd.workers.weights.torch_bytes import dtype_name, memory

_PIECE_BYTES: Final = 16 << 20
"""Maximum bytes sent from a rank to the first at once, except for a longer row."""


def whole(tensor: Tensor) -> Tensor:
    """Returns the complete tensor on every rank; all ranks must call it at the same time. Not copied on a single
    rank.
    """
    if not is_spread(tensor):
        return tensor
    if dist.get_world_size() == 1:
        return tensor.to_local()
    return tensor.full_tensor()


def one_by_one(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yields each tensor complete, in the same order on every rank, so that at most one complete tensor exists at a
    time.
    """
    for name, tensor in tensors.items():
        yield name, whole(tensor)


def pieces_on_first(tensors: Mapping[str, Tensor]) -> Iterator[Shard]:
    """Yields each tensor in small pieces on rank 0; other ranks must iterate to the end, and get nothing.

    Rank 0 stores at most one piece of another rank's part at a time.
    """
    rank, _ = this_rank()
    for name, tensor in tensors.items():
        local_part = local(tensor.detach())
        box = LocalBox((0,) * tensor.ndim, first_copy=rank == 0)
        if is_spread(tensor):
            box = box_of(tensor)
        whole_one = TensorLayout(dtype_name(tensor), tuple(tensor.shape))
        own_box = _HeldBox(box.offset, tuple(local_part.shape), box.first_copy)
        for source, encoded in enumerate(gather_bytes(msgspec.json.encode(own_box))):
            source_box = json_decoder(_HeldBox).decode(encoded)
            if not source_box.first_copy or rank not in (0, source):
                continue
            for begin, rows in _pieces(source_box.size, tensor.element_size()):
                piece = local_part[begin : begin + rows] if source_box.size else local_part
                size = (rows, *source_box.size[1:]) if source_box.size else ()
                if source != rank:
                    piece = local_part.new_empty(size)
                received = move_to_first(piece, source)
                if rank == 0:
                    offset = (source_box.offset[0] + begin, *source_box.offset[1:]) if source_box.size else ()
                    yield Shard(name, whole_one, offset, size, partial(memory, received))
                del piece, received
        del local_part


class _HeldBox(msgspec.Struct, frozen=True, array_like=True):
    """Position of a rank's part of a tensor, as sent to rank 0."""

    offset: tuple[int, ...]
    """Index of the part's first number in the tensor, by dimension."""
    size: tuple[int, ...]
    """Extent of the part, by dimension."""
    first_copy: bool
    """True on the first of the ranks with the same part."""


def _pieces(size: tuple[int, ...], item_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields the first row and the number of rows of each piece."""
    if not size:
        yield 0, 1
        return
    rows = max(1, _PIECE_BYTES // max(1, math.prod(size[1:]) * item_bytes))
    for begin in range(0, size[0], rows):
        yield begin, min(rows, size[0] - begin)


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Returns this rank's part of a complete tensor, on the device and with the layout of `like`."""
    tensor = tensor.to(like.device)
    if not is_spread(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    # Without a source: every rank has read the whole tensor, and nothing must be sent.
    distributed: Tensor = distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
    return distributed


@torch.no_grad()
def copy_shards(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copies this rank's parts of `tensors` into `targets`, of equal names and layouts."""
    for name, target in targets.items():
        local(target).copy_(local(tensors[name]))


def local(tensor: Tensor) -> Tensor:
    """Returns this rank's part of the tensor; a tensor not spread is returned unchanged."""
    return tensor.to_local() if is_spread(tensor) else tensor


def digest(form: Form, tensors: Mapping[str, Tensor], digester: TensorDigests) -> str:
    """Returns the digest of the complete tensors, equal on every rank; computed on rank 0, one tensor after the
    other.
    """
    ranks = dist.get_world_size()
    # Tensors have no digest of the other two forms, so any form serves as well.
    form = "xxh3" if form in ("name", "sha256") else form
    if ranks == 1:
        return digester.of(form, {name: whole(tensor) for name, tensor in tensors.items()})
    lines: list[TensorDigest] = []
    for name, tensor in one_by_one(tensors):
        if dist.get_rank() == 0:
            lines += digester.each(form, {name: tensor})
        del tensor  # before the next one is gathered
    own_digest = digest_of(form, lines) if lines else ""
    return gather_bytes(own_digest.encode())[0].decode()
