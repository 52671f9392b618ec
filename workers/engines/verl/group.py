"""The process group of the ranks that train together, and their shares of the micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from rftd.ops.decoding import msgpack_decoder
from rftd.workers.engines.ranks.collectives import gather_bytes


def join_group(device: torch.device) -> bool:
    """Creates a process group of this process alone, unless a group exists; True if it was created."""
    if dist.is_initialized():
        return False
    # In memory: a group of one needs no port, and nobody else can join it.
    dist.init_process_group(
        "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
        store=torch._C._distributed_c10d.HashStore(),
        rank=0,
        world_size=1,
    )
    return True


@dataclass(frozen=True, slots=True)
class Shares:
    """How ranks divide the micro-batches of a call; ranks that share a sequence or a tensor have the same share."""

    rank: int
    """Number of this rank's share."""
    count: int
    """Number of shares."""
    device: torch.device
    """This rank's device."""
    group: dist.ProcessGroup | None
    """The ranks to exchange results with, one of each share; None for a single share."""

    def own_numbers(self, micro_batches: int) -> list[int]:
        """Returns the numbers of this rank's micro-batches, one for each joint pass of all ranks; a number of
        `micro_batches` or more stands for an empty one.

        All ranks take part in every joint pass, because each computes with the weights' parts of all.
        """
        return [start + self.rank for start in range(0, micro_batches, self.count)]

    def summed(self, values: Tensor) -> Tensor:
        """Sums the values over the shares, in place, and returns them."""
        if self.count > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def gathered_terms(self, own: Mapping[int, Mapping[str, float]], count: int) -> list[dict[str, float]]:
        """Returns the terms of all `count` micro-batches in order, gathered from the shares; `own` are this rank's, by
        number.
        """
        if self.count == 1:
            return [dict(own[number]) for number in range(count)]
        parts = gather_bytes(msgspec.msgpack.encode(own), group=self.group)
        figures: dict[int, dict[str, float]] = {}
        for part in parts:
            figures |= msgpack_decoder(dict[int, dict[str, float]]).decode(part)
        return [figures[number] for number in range(count)]
