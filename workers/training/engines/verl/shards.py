"""Tensors of which each rank has a part: put together, taken apart, digested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from rftd.workers.training.engines.verl.group import gathered
from rftd.workers.weights.checksum import Form, TensorDigest, digest_of
from rftd.workers.weights.tensor_digests import TensorDigests


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, on every rank; all ranks ask for it together. Of a single rank it is no copy."""
    if not isinstance(tensor, DTensor):
        return tensor
    if dist.get_world_size() == 1:
        return tensor.to_local()
    return tensor.full_tensor()


def one_by_one(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor whole, one after the other, so that no more than one is: in the same order on every rank."""
    for name, tensor in tensors.items():
        yield name, whole(tensor)


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """A tensor that every rank has whole, as this rank's part of it  # as `like`, on its device"""
    value = value.to(like.device)
    if not isinstance(like, DTensor):
        return value
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
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def digest(form: Form, tensors: Mapping[str, Tensor], digester: TensorDigests) -> str:
    """The digest of the whole tensors, equal on every rank; the first rank makes it, one tensor after the other."""
    ranks = dist.get_world_size()
    if ranks == 1 or form == "sha256":
        return digester.of(form, {name: whole(tensor) for name, tensor in tensors.items()})
    lines: list[TensorDigest] = []
    for name, tensor in one_by_one(tensors):
        if dist.get_rank() == 0:
            lines += digester.each(form, {name: tensor})
        del tensor  # before the next one is gathered
    made = digest_of(form, lines) if lines else ""
    device = next(iter(tensors.values())).device
    return gathered(made.encode(), ranks, device)[0].decode()
