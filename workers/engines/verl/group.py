"""The ranks of one training: their process group, shares of micro-batches, and messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from rftd.ops.decoding import msgpack_decoder
from rftd.workers.engines.ranks.collectives import gathered


def join_group(device: torch.device) -> bool:
    """Makes a group of the present process alone, unless a group exists; returns True for a new group."""
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
    """The shares of the ranks in the micro-batches; ranks with common sequences have equal shares."""

    rank: int
    """The number of this rank's share."""
    count: int
    """The number of shares."""
    device: torch.device
    group: dist.ProcessGroup | None
    """One rank of each share; None: there is one share."""

    def rounds(self, micro_batches: int) -> list[int]:
        """The number of the rank's micro-batch in each round, in the last round possibly beyond the end.

        All ranks take part in each round, for each computes with parts of the weights of all.
        """
        return [start + self.rank for start in range(0, micro_batches, self.count)]

    def summed(self, values: Tensor) -> Tensor:
        """The sum over the shares, in place."""
        if self.count > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def told(self, own: Mapping[int, Mapping[str, float]], count: int) -> list[dict[str, float]]:
        """The terms of `count` micro-batches by number, gathered from each rank's `own`."""
        if self.count == 1:
            return [dict(own[number]) for number in range(count)]
        parts = gathered(msgspec.msgpack.encode(own), group=self.group)
        figures: dict[int, dict[str, float]] = {}
        for part in parts:
            figures |= msgpack_decoder(dict[int, dict[str, float]]).decode(part)
        return [figures[number] for number in range(count)]
