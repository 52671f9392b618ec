"""The ranks that train together: their process group, and what they tell one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from rftd.ops.decoding import msgpack_decoder

T = TypeVar("T")


def join_group(device: torch.device) -> bool:
    """Makes a group of this process alone where none was made; returns True if it did."""
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
    """The shares of the ranks in the micro-batches: ranks that share sequences have the same ones."""

    rank: int
    """The number of this rank's share."""
    count: int
    """The number of shares."""
    device: torch.device
    group: dist.ProcessGroup | None
    """One rank of each share; None: there is one share."""

    def rounds(self, micro_batches: int) -> list[int]:
        """The number of this rank's micro-batch in each round; one that is too large: it has none left.

        All ranks take part in each round, for each computes with parts of the weights of all.
        """
        return [start + self.rank for start in range(0, micro_batches, self.count)]

    def summed(self, values: Tensor) -> Tensor:
        """The sum over the shares, in place."""
        if self.count > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def told(self, own: Mapping[int, Mapping[str, float]], count: int) -> list[dict[str, float]]:
        """The figures of `count` micro-batches by number, of which this rank knows its `own`."""
        if self.count == 1:
            return [dict(own[number]) for number in range(count)]
        parts = gathered(msgspec.msgpack.encode(own), self.count, self.device, self.group)
        found: dict[int, dict[str, float]] = {}
        for part in parts:
            found |= msgpack_decoder(dict[int, dict[str, float]]).decode(part)
        return [found[number] for number in range(count)]


def gathered(own: bytes, count: int, device: torch.device, group: dist.ProcessGroup | None = None) -> Sequence[bytes]:
    """The bytes of each rank of the group, in their order."""
    # Not all_gather_object, which pickles.
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(count)]
    dist.all_gather(sizes, torch.tensor([len(own)], device=device), group=group)
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    if own:  # frombuffer refuses an empty one
        padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    parts = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in range(count)]
    dist.all_gather(parts, padded.to(device), group=group)
    return [bytes(part[: int(size)].cpu().numpy()) for part, size in zip(parts, sizes, strict=True)]
