"""`SpreadAdapter`: a low-rank adapter learns beside a model that is spread over ranks (peft).

An adapter is small: where it is merged, every rank has it whole, and adds it to its own part of the weights.
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
from rftd.workers.engines.ranks.collectives import together
from rftd.workers.engines.ranks.spool import SpreadWeights
from rftd.workers.engines.ranks.torch_shards import box_of
from rftd.workers.engines.torch.trainer.low_rank import FOLDER, LowRankLayers, own_name, read_adapter
from rftd.workers.engines.torch.trainer.snapshot import SpreadTensors, rounded_for
from rftd.workers.engines.verl import saving
from rftd.workers.engines.verl.model import PolicyModel, Wrapping, open_model
from rftd.workers.engines.verl.shards import copy_shards, local, one_by_one, whole
from rftd.workers.weights.adapter import A, B
from rftd.workers.weights.shards import Shard
from rftd.workers.weights.tensor_bytes import TensorLayout
from rftd.workers.weights.torch_bytes import memory

_ROWS: Final = 256
"""Rows of a weight that are merged at once; they begin at the same ones whatever part of it a rank has."""


class SpreadAdapter:
    """Implements `SpreadPolicy` with a low-rank adapter.

    `merged`: explorers get whole weights; else the adapter alone, which they add to their base.
    """

    def __init__(self, base: Path, wrapping: Wrapping, spec: LoraSpec, *, seed: int, merged: bool) -> None:
        """Raises ConfigError for layers that cannot be adapted, DataError if a folder does not hold what it should."""
        made: list[LowRankLayers] = []

        def adapt(module: Any) -> None:
            made.append(LowRankLayers(module, base, spec, seed=seed))

        self.model: Any = open_model(PolicyModel, base, wrapping, before=adapt)
        (self._layers,) = made
        self._base = base
        self._merged = merged

    def learned(self) -> dict[str, torch.nn.Parameter]:
        """The matrices A and B of each adapted module."""
        return {name: value for name, value in self.model.parameters.items() if value.requires_grad}

    def published(self) -> Mapping[str, Tensor]:
        """The merged weights by the model's own names, or the adapter with its scale in B."""
        return self._whole() if self._merged else self._alone()

    def spread(self, experiment: ExperimentSpec | None) -> SpreadWeights:
        """Each rank gives its part, merged when it is asked for."""
        if not self._merged:
            return SpreadTensors(self._alone(), rounded=())
        weights = self._whole()
        return MergedShards(weights, rounded_for(experiment, self.model.module, weights.beneath))

    def freeze(self, *, offload: bool) -> SpreadAdapterAsItWas:
        """A copy of the adapter alone: the base beneath is frozen anyhow."""
        return SpreadAdapterAsItWas(self.model, self.learned())

    def write(self, actor: Path, *, hf: bool, strategy: saving.SaveStrategy) -> None:
        """Saves `lora_adapter/` in peft's layout, which transformers loads, and with `hf` the merged model too."""
        kept = {name: each.cpu() for name, each in one_by_one(self._layers.saved())}
        if dist.get_rank() == 0:
            self._layers.write(actor, kept)
        if hf:
            saving.write_hf_folder(actor / "huggingface", self._whole(), self._base)

    def restore(self, actor: Path) -> None:
        """Takes the adapter back from `lora_adapter/`."""
        folder = actor / FOLDER
        with together():
            saving.copy_parts(self._layers.saved(), read_adapter(folder), folder)

    def _alone(self) -> dict[str, Tensor]:
        found = {}
        for module in self._layers.modules:
            found[module + A] = self._layers.low(module)
            # The scale goes into B, so that explorers add B A without knowing rank or alpha.
            found[module + B] = self._layers.high(module) * self._layers.scale(module)
        return found

    def _whole(self) -> MergedWeights:
        learned = self.learned()
        tensors: dict[str, Tensor] = self.model.tensors()
        changes = {}
        for module in self._layers.modules:
            low, high = whole(self._layers.low(module)), whole(self._layers.high(module))
            changes[f"{module}.weight"] = AdapterChange(low, high, self._layers.scale(module))
        beneath = {own_name(name): value for name, value in tensors.items() if name not in learned}
        return MergedWeights(beneath, changes)


@dataclass(frozen=True, slots=True)
class AdapterChange:
    """The tensor that an adapter adds to a weight: scale * B A."""

    low: Tensor
    """A  # [r, in]"""
    high: Tensor
    """B  # [out, r]"""
    scale: float

    def added(self, rows: Tensor, begin: int) -> Tensor:
        """The sum with some rows of the weight, those from `begin` on; its bits do not depend on how many they are."""
        made = rows.clone()
        end = begin + len(rows)
        for first in range(begin - begin % _ROWS, end, _ROWS):
            change = (self.high[first : first + _ROWS] @ self.low) * self.scale
            start = max(first, begin)
            stop = min(first + _ROWS, end)
            made[start - begin : stop - begin] += change[start - first : stop - first]
        return made


class MergedWeights(Mapping[str, Tensor]):
    """The weights with an adapter added, each merged anew when it is asked for: every rank's part by itself.

    It has the adapter whole, so that a rank need not ask for what others do not.
    """

    def __init__(self, beneath: Mapping[str, Tensor], changes: Mapping[str, AdapterChange]) -> None:
        """`beneath`: the weights and buffers without the adapter."""
        self.beneath = beneath
        self._changes = changes

    def __getitem__(self, name: str) -> Tensor:
        """The part of this rank, merged."""
        tensor = self.beneath[name]
        if name not in self._changes:
            return tensor
        if not isinstance(tensor, DTensor):
            return self._changes[name].added(tensor, 0)
        made: Tensor = DTensor.from_local(
            self._changes[name].added(tensor.to_local(), box_of(tensor).offset[0]),
            tensor.device_mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )
        return made

    def __iter__(self) -> Iterator[str]:
        """The names, in one order on all ranks."""
        return iter(self.beneath)

    def __len__(self) -> int:
        """The number of tensors."""
        return len(self.beneath)

    def merged(self, shard: Shard) -> Shard:
        """A part of a weight `beneath`, merged when its bytes are asked for."""
        if shard.name not in self._changes:
            return shard
        return replace(shard, data=partial(self._bytes, shard))

    def _bytes(self, shard: Shard) -> memoryview:
        rows = local(self.beneath[shard.name])
        if not isinstance(self.beneath[shard.name], DTensor):
            rows = rows[shard.offset[0] : shard.offset[0] + shard.size[0]]
        dtype: torch.dtype = getattr(torch, shard.whole.dtype)
        return memory(self._changes[shard.name].added(rows, shard.offset[0]).to(dtype))


class MergedShards:
    """Implements `SpreadWeights`: no rank has more than one merged part at a time."""

    def __init__(self, weights: MergedWeights, rounded: frozenset[str]) -> None:
        """Tensors that are named in `rounded` are given in bfloat16."""
        self.exact = not rounded
        self._weights = weights
        self._beneath = SpreadTensors(weights.beneath, rounded=rounded)

    def layouts(self) -> Mapping[str, TensorLayout]:
        """The dtype that each is given in, and its shape."""
        return self._beneath.layouts()

    def shards(self) -> Iterator[Shard]:
        """The part of each tensor that this rank has."""
        return map(self._weights.merged, self._beneath.shards())


class SpreadAdapterAsItWas:
    """A model for passes without a gradient: the policy, with the adapter's numbers of a moment while it is asked.

    It is not asked between a forward pass of the policy and its backward pass.
    """

    def __init__(self, model: Any, learned: Mapping[str, torch.nn.Parameter]) -> None:
        self._model = model
        self._learned = learned
        self._kept: dict[str, Tensor] = {name: value.detach().clone() for name, value in learned.items()}

    @property
    def use_remove_padding(self) -> bool:
        """The policy's."""
        found: bool = self._model.use_remove_padding
        return found

    @contextmanager
    def running(self, *, gradient: bool) -> Iterator[None]:
        """Has these numbers in place within it."""
        assert not gradient, "the adapter as it was does not learn"
        with self._model.running(gradient=False):
            # Copied out and in, not exchanged: the optimizer holds the very tensors that are the live ones.
            present = {name: value.detach().clone() for name, value in self._learned.items()}
            copy_shards(self._learned, self._kept)
            try:
                yield
            finally:
                # First: while the root's weights are whole, its parts are not what it computes with.
                self._model.module.reshard()
                copy_shards(self._learned, present)

    def found(self, data: Any) -> Any:
        """One forward pass, as the policy's."""
        return self._model.found(data)

    def tensors(self) -> dict[str, Tensor]:
        """The kept numbers, by name."""
        return dict(self._kept)
