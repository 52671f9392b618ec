"""`SpreadAdapter`: a policy that trains a low-rank adapter of a model spread over ranks (peft).

An adapter is small: for merging, every rank gathers the complete adapter and adds it to its part of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from rftd.streams.spec.spec import ExperimentSpec, LoraSpec
from rftd.workers.engines.learner.low_rank import EarlierNumbers, LowRankLayers, LowRankPolicy, own_name
from rftd.workers.engines.learner.snapshot import SpreadTensors, rounded_for
from rftd.workers.engines.ranks.spool import SpreadWeights
from rftd.workers.engines.ranks.spread import local, one_by_one, whole
from rftd.workers.engines.ranks.torch_shards import box_of
from rftd.workers.engines.verl.opened_model import open_model
from rftd.workers.engines.verl.passes import VerlPasses
from rftd.workers.engines.verl.saving import write_hf_folder
from rftd.workers.engines.verl.wrapping import Wrapping
from rftd.workers.weights.shards import Shard
from rftd.workers.weights.tensor_bytes import TensorLayout
from rftd.workers.weights.torch_bytes import memory

_ROWS: Final = 256
"""Rows of a weight merged at once; blocks begin at the same rows on all ranks, for equal bits."""


class SpreadAdapter(LowRankPolicy):
    """Implements `Policy` with an adapter of a model spread over ranks."""

    def __init__(self, base: Path, wrapping: Wrapping, spec: LoraSpec, *, seed: int, merged: bool) -> None:
        """Opens the model in `base`, adds an adapter, and spreads both over the ranks. Raises ConfigError for unfit
        layers, DataError for a folder without its model or adapter.
        """
        layers: list[LowRankLayers] = []

        def adapt(module: Any) -> None:
            layers.append(LowRankLayers(module, base, spec, seed=seed))

        model = open_model(base, wrapping, before=adapt)
        super().__init__(model, layers[0], base, merged=merged)
        self.wrapping = wrapping

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns the matrices A and B of each adapted module, by name."""
        return {name: value for name, value in self.model.parameters.items() if value.requires_grad}

    def whole(self) -> MergedWeights:
        """Returns the merged weights by the model's own names, each merged on access, buffers included."""
        learned = self.parameters()
        tensors: dict[str, Tensor] = self.model.tensors()
        changes = {}
        for module in self.layers.modules:
            low, high = whole(self.layers.low(module)), whole(self.layers.high(module))
            changes[f"{module}.weight"] = AdapterChange(low, high, self.layers.scale(module))
        beneath = {own_name(name): value for name, value in tensors.items() if name not in learned}
        return MergedWeights(beneath, changes)

    def spread(self, experiment: ExperimentSpec | None) -> SpreadWeights:
        """Returns this rank's parts of the published tensors, merged on access."""
        if not self.merged:
            return SpreadTensors(self.alone(), rounded=())
        weights = self.whole()
        return MergedShards(weights, rounded_for(experiment, self.model.module, weights.beneath))

    def freeze(self, passes: VerlPasses, *, offload: bool) -> VerlPasses:
        """Returns the policy's passes with a copy of the adapter's current numbers, for the reference; `offload` has no
        effect.
        """
        return replace(passes, model=EarlierAdapter(self.model, self.parameters()), parameters={})

    def write(self, actor: Path, *, hf: bool, writers: int) -> None:
        """Writes `lora_adapter/` in peft's layout, and with `hf` the merged model for transformers; all ranks call
        it.
        """
        matrices = {name: matrix.cpu() for name, matrix in one_by_one(self.layers.saved())}
        if dist.get_rank() == 0:
            self.layers.write(actor, matrices)
        if hf:
            write_hf_folder(actor / "huggingface", self.whole(), self.base)


@dataclass(frozen=True, slots=True)
class AdapterChange:
    """The change of one weight by an adapter: scale B A."""

    low: Tensor
    """A  # [r, in]"""
    high: Tensor
    """B  # [out, r]"""
    scale: float

    def added(self, rows: Tensor, begin: int) -> Tensor:
        """Returns the weight's rows from number `begin` on, with the change added; the bits do not depend on how rows
        are divided.
        """
        merged = rows.clone()
        end = begin + len(rows)
        for first in range(begin - begin % _ROWS, end, _ROWS):
            change = (self.high[first : first + _ROWS] @ self.low) * self.scale
            start = max(first, begin)
            stop = min(first + _ROWS, end)
            merged[start - begin : stop - begin] += change[start - first : stop - first]
        return merged


class MergedWeights(Mapping[str, Tensor]):
    """Weights with an adapter added, by name; each rank's part is merged anew on every access.

    The complete adapter is on every rank, so merging needs no call of other ranks.
    """

    def __init__(self, beneath: Mapping[str, Tensor], changes: Mapping[str, AdapterChange]) -> None:
        """`beneath` are weights and buffers without the adapter; `changes` are the adapter's, by name of the weight."""
        self.beneath = beneath
        self._changes = changes

    def __getitem__(self, name: str) -> Tensor:
        """The present rank's part, merged."""
        tensor = self.beneath[name]
        if name not in self._changes:
            return tensor
        if not isinstance(tensor, DTensor):
            return self._changes[name].added(tensor, 0)
        merged: Tensor = DTensor.from_local(
            self._changes[name].added(tensor.to_local(), box_of(tensor).offset[0]),
            tensor.device_mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )
        return merged

    def __iter__(self) -> Iterator[str]:
        """The names, in equal order on all ranks."""
        return iter(self.beneath)

    def __len__(self) -> int:
        """The number of tensors."""
        return len(self.beneath)

    def merged(self, shard: Shard) -> Shard:
        """Returns a part of a weight, merged when its bytes are read."""
        if shard.name not in self._changes:
            return shard
        return replace(shard, data=partial(self._bytes, shard))

    def _bytes(self, shard: Shard) -> memoryview:
        """Returns the bytes of a part of a weight, with the adapter's change added."""
        rows = local(self.beneath[shard.name])
        if not isinstance(self.beneath[shard.name], DTensor):
            rows = rows[shard.offset[0] : shard.offset[0] + shard.size[0]]
        dtype: torch.dtype = getattr(torch, shard.whole.dtype)
        return memory(self._changes[shard.name].added(rows, shard.offset[0]).to(dtype))


class MergedShards:
    """Implements `SpreadWeights` for merged weights: no rank holds more than one merged part at a time."""

    def __init__(self, weights: MergedWeights, rounded: frozenset[str]) -> None:
        """`rounded` names the tensors to yield in bfloat16."""
        self.exact = not rounded
        self._weights = weights
        self._beneath = SpreadTensors(weights.beneath, rounded=rounded)

    def layouts(self) -> Mapping[str, TensorLayout]:
        """Returns the published dtype and the shape of each tensor."""
        return self._beneath.layouts()

    def shards(self) -> Iterator[Shard]:
        """Yields this rank's part of each tensor."""
        return map(self._weights.merged, self._beneath.shards())


class EarlierAdapter:
    """The policy's model with a copy of an adapter's numbers from one moment, put in place during each pass; without
    gradient.
    """

    def __init__(self, model: Any, parameters: Mapping[str, Tensor]) -> None:
        """Copies the current numbers of the adapter's `parameters`."""
        self._model = model
        self._numbers = EarlierNumbers(parameters)
        self.use_remove_padding: bool = model.use_remove_padding
        self.vocabulary_tokens: int = model.vocabulary_tokens
        self.outputs_of = model.outputs_of
        self.tensors = self._numbers.tensors

    @contextmanager
    def running(self, *, gradient: bool) -> Iterator[None]:
        """Puts the earlier numbers in place within the context; never between a pass of the policy and its backward
        pass.
        """
        assert not gradient, "a reference has no gradient"
        with self._model.running(gradient=False), self._numbers.in_place():
            try:
                yield
            finally:
                # Before the present numbers return: while the root's weights are whole, its parts have no effect.
                self._model.module.reshard()
