"""Tensors of which each rank has a part: put together, taken apart, digested."""

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
from rftd.workers.engines.ranks.collectives import at_first, gathered, this_rank
from rftd.workers.engines.ranks.torch_shards import LocalBox, box_of, is_spread
from rftd.workers.weights.checksum import Form, TensorDigest, digest_of
from rftd.workers.weights.shards import Shard
from rftd.workers.weights.tensor_bytes import TensorLayout
from rftd.workers.weights.tensor_digests import TensorDigests
from rftd.workers.weights.torch_bytes import dtype_name, memory

_PIECE_BYTES: Final = 16 << 20
"""The most that goes from one rank to the first at once, but for a row that is longer."""


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, on every rank; all ranks ask for it together. Of a single rank it is no copy."""
    if not is_spread(tensor):
        return tensor
    if dist.get_world_size() == 1:
        return tensor.to_local()
    return tensor.full_tensor()


def one_by_one(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor whole, one after the other, so that no more than one is: in the same order on every rank."""
    for name, tensor in tensors.items():
        yield name, whole(tensor)


def to_first(tensors: Mapping[str, Tensor]) -> Iterator[Shard]:
    """Each tensor in pieces of few bytes, on the first rank alone; the others read to the end, and get nothing.

    So no rank has another one's part, and the first one no more of it than a piece.
    """
    rank, _ = this_rank()
    for name, tensor in tensors.items():
        held = local(tensor.detach())
        box = LocalBox((0,) * tensor.ndim, first_copy=rank == 0)
        if is_spread(tensor):
            box = box_of(tensor)
        whole_one = TensorLayout(dtype_name(tensor), tuple(tensor.shape))
        here = _HeldBox(box.offset, tuple(held.shape), box.first_copy)
        for source, each in enumerate(gathered(msgspec.json.encode(here))):
            there = json_decoder(_HeldBox).decode(each)
            if not there.first_copy or rank not in (0, source):
                continue
            for begin, rows in _pieces(there.size, tensor.element_size()):
                piece = held[begin : begin + rows] if there.size else held
                size = (rows, *there.size[1:]) if there.size else ()
                if source != rank:
                    piece = held.new_empty(size)
                found = at_first(piece, source)
                if rank == 0:
                    offset = (there.offset[0] + begin, *there.offset[1:]) if there.size else ()
                    yield Shard(name, whole_one, offset, size, partial(memory, found))
                del piece, found
        del held


class _HeldBox(msgspec.Struct, frozen=True, array_like=True):
    """The place of a rank's part of a tensor."""

    offset: tuple[int, ...]
    size: tuple[int, ...]
    first_copy: bool


def _pieces(size: tuple[int, ...], item_bytes: int) -> Iterator[tuple[int, int]]:
    """The first row and the number of rows of each piece."""
    if not size:
        yield 0, 1
        return
    rows = max(1, _PIECE_BYTES // max(1, math.prod(size[1:]) * item_bytes))
    for begin in range(0, size[0], rows):
        yield begin, min(rows, size[0] - begin)


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """A tensor that every rank has whole, as this rank's part of it  # as `like`, on its device"""
    value = value.to(like.device)
    if not is_spread(like):
        return value
    from torch.distributed.tensor import distribute_tensor

    # Without a source: every rank has read the whole, and nothing has to be sent.
    made: Tensor = distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
    return made


@torch.no_grad()
def copy_shards(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copies what others of the same names and layouts hold on this rank."""
    for name, value in own.items():
        local(value).copy_(local(tensors[name]))


def local(tensor: Tensor) -> Tensor:
    """The part of the tensor that this rank has."""
    return tensor.to_local() if is_spread(tensor) else tensor


def digest(form: Form, tensors: Mapping[str, Tensor], digester: TensorDigests) -> str:
    """The digest of the whole tensors, equal on every rank; the first rank makes it, one tensor after the other."""
    ranks = dist.get_world_size()
    form = "xxh3" if form in ("name", "sha256") else form  # of what these tensors cannot equal, any other will do
    if ranks == 1:
        return digester.of(form, {name: whole(tensor) for name, tensor in tensors.items()})
    lines: list[TensorDigest] = []
    for name, tensor in one_by_one(tensors):
        if dist.get_rank() == 0:
            lines += digester.each(form, {name: tensor})
        del tensor  # before the next one is gathered
    made = digest_of(form, lines) if lines else ""
    return gathered(made.encode())[0].decode()
