"""`VerlSnapshot`: the weights of one version as explorers get them, gathered from the ranks one tensor at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from rftd.workers.training.engines.verl.shards import one_by_one
from rftd.workers.weights.channel import BYTES
from rftd.workers.weights.tensor_bytes import Weights
from rftd.workers.weights.torch_bytes import bytes_of


class VerlSnapshot:
    """Implements `WeightsSnapshot` with copies on the first rank's device; other ranks have none."""

    kind = BYTES

    def __init__(self, tensors: Mapping[str, Tensor], *, exact: bool) -> None:
        """Use `of`."""
        self.exact = exact
        self._tensors = tensors

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], *, rounded: Collection[str]) -> VerlSnapshot:
        """Copies of the whole tensors, those that are named in `rounded` in bfloat16; all ranks call it."""
        copies: dict[str, Tensor] = {}
        for name, tensor in one_by_one(tensors):
            if dist.get_rank() == 0:
                copies[name] = tensor.detach().to(torch.bfloat16 if name in rounded else tensor.dtype, copy=True)
        return cls(copies, exact=not rounded)

    def weights(self) -> Weights:
        """The bytes of the tensors, without a copy of those on a CPU."""
        return bytes_of(self._tensors)
