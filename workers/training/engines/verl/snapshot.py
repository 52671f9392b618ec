"""`GatheredWeights`: the weights as explorers get them, gathered from the ranks one tensor at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from rftd.workers.training.engines.verl.shards import one_by_one
from rftd.workers.training.ranks.shards import Shard
from rftd.workers.weights.tensor_bytes import TensorLayout
from rftd.workers.weights.torch_bytes import dtype_name, memory


class GatheredWeights:
    """Implements `SpreadWeights`: it has no copy, and is read before the next step."""

    def __init__(self, tensors: Mapping[str, Tensor], *, rounded: Collection[str]) -> None:
        """`tensors` are those that train; those named in `rounded` are given in bfloat16."""
        self.exact = not rounded
        self._tensors = tensors
        self._rounded = rounded

    def layouts(self) -> Mapping[str, TensorLayout]:
        """Every tensor's dtype and shape, the same on all ranks."""
        return {
            name: TensorLayout("bfloat16" if name in self._rounded else dtype_name(each), tuple(each.shape))
            for name, each in self._tensors.items()
        }

    def shards(self) -> Iterator[Shard]:
        """The whole tensors, one at a time, of the first rank; all ranks iterate to the end at once."""
        layouts = self.layouts()
        for name, tensor in self._whole():
            if dist.get_rank() == 0:
                layout = layouts[name]
                offset = (0,) * len(layout.shape)
                yield Shard(name, layout, offset, layout.shape, partial(memory, tensor))

    def _whole(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in one_by_one(self._tensors):
            yield name, tensor.to(torch.bfloat16) if name in self._rounded else tensor
