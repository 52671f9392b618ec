"""`TorchSnapshot`: a copy of the weights under training, for explorers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.engines.learner.model import buffers_of
from rftd.workers.engines.ranks.collectives import this_rank
from rftd.workers.engines.ranks.torch_shards import shards_of
from rftd.workers.weights.adapter import is_adapter
from rftd.workers.weights.channel import BYTES
from rftd.workers.weights.shards import Shard
from rftd.workers.weights.tensor_bytes import TensorLayout, Weights
from rftd.workers.weights.torch_bytes import bytes_of


class TorchSnapshot:
    """Implements `WeightsSnapshot` with copies on the device."""

    kind = BYTES
    """Kind of the snapshot: bytes of tensors."""

    def __init__(self, tensors: Mapping[str, Tensor], *, exact: bool) -> None:
        """Wraps copied tensors; `exact` is False if some were rounded. To be called by `of`."""
        self.exact = exact
        self._tensors = tensors

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], *, rounded: Collection[str]) -> TorchSnapshot:
        """Copies the tensors on their device, in bfloat16 for names in `rounded`; tied tensors stay tied."""
        copies: dict[int, Tensor] = {}
        for name, weight in tensors.items():
            # By address: tied weights have one copy, and travel to explorers as one.
            if weight.data_ptr() not in copies or not weight.numel():
                dtype = torch.bfloat16 if name in rounded else weight.dtype
                copies[weight.data_ptr()] = weight.detach().to(dtype, copy=True)
        return cls({name: copies[weight.data_ptr()] for name, weight in tensors.items()}, exact=not rounded)

    def tensors(self) -> Mapping[str, Tensor]:
        """Returns the copies by name."""
        return self._tensors

    def weights(self) -> Weights:
        """Returns the bytes of the tensors; tensors on a CPU are not copied."""
        return bytes_of(self._tensors)


class SpreadTensors:
    """Implements `SpreadWeights`: each rank yields its part of a spread tensor, and a share of the rows of other
    tensors.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, rounded: Collection[str]) -> None:
        """`rounded` names the tensors to yield in bfloat16."""
        self.exact = not rounded
        self._tensors = tensors
        self._dtypes = dict.fromkeys(rounded, torch.bfloat16)

    def layouts(self) -> Mapping[str, TensorLayout]:
        """Returns the published dtype and the shape of each tensor."""
        return {
            name: TensorLayout(str(self._dtypes.get(name, tensor.dtype)).removeprefix("torch."), tuple(tensor.shape))
            for name, tensor in self._tensors.items()
        }

    def shards(self) -> Iterator[Shard]:
        """Yields this rank's part of each tensor."""
        rank, ranks = this_rank()
        return iter(shards_of(self._tensors, rank, ranks, dtypes=self._dtypes))


def rounded_for(experiment: ExperimentSpec | None, model: Any, tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Returns the names of tensors that all explorers round to bfloat16, and that therefore can be published in half
    the bytes; often empty.

    Empty for an adapter, because explorers round its sum with the base; without the modules that transformers keeps in
    float32.
    """
    stages = experiment.stages if experiment is not None else ()
    dtypes = {stage.rollout.dtype for stage in stages if stage.kind != "train"}
    if dtypes != {"bfloat16"} or is_adapter(tensors):
        return frozenset()
    in_float32 = {*(getattr(model, "_keep_in_fp32_modules", None) or ())}
    in_float32 |= {*(getattr(model, "_keep_in_fp32_modules_strict", None) or ())}
    exact = buffers_of(model).keys()
    return frozenset(
        name
        for name, tensor in tensors.items()
        if tensor.dtype == torch.float32
        and name not in exact
        and not any(name_part in name for name_part in in_float32)
    )
