"""`Adapter`: a low-rank adapter learns, the model beneath stays as it was read (peft)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rftd.streams.spec.spec import LoraSpec
from rftd.workers.engines.ranks.collectives import this_rank
from rftd.workers.engines.torch.trainer import saving
from rftd.workers.engines.torch.trainer.low_rank import FOLDER, LowRankLayers, own_name, read_adapter
from rftd.workers.engines.torch.trainer.model import buffers_of, write_hf
from rftd.workers.weights.adapter import A, B


class Adapter:
    """Implements `Policy` with a low-rank adapter.

    `merged`: explorers get whole weights; else the adapter alone, which they add to their base.
    """

    def __init__(self, model: Any, base: Path, spec: LoraSpec, *, seed: int, merged: bool) -> None:
        self._layers = LowRankLayers(model, base, spec, seed=seed)
        self.model: Any = self._layers.model
        self._base = base
        self._merged = merged

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The matrices A and B of each adapted module, by name."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    def published(self) -> dict[str, Tensor]:
        """The merged weights by the model's own names, or the adapter with its scale in B."""
        return self.whole() if self._merged else self._alone()

    def whole(self) -> dict[str, Tensor]:
        """The merged weights: base + scale B A for each adapted module, every other weight and buffer as it is."""
        found = buffers_of(self.model)
        adapted = {f"{module}.weight": module for module in self._layers.modules}
        for parameter, value in self.model.named_parameters():
            if value.requires_grad:
                continue
            name = own_name(parameter)
            # Merged anew for each publication, not in place: what learns must stay apart from the base.
            module = adapted.get(name)
            found[name] = value.detach() if module is None else value.detach() + self._layers.change(module)
        return found

    def freeze(self) -> AdapterAsItWas:
        """A copy of the adapter alone: the base beneath is frozen anyhow."""
        return AdapterAsItWas(self)

    def write(self, actor: Path, *, hf: bool) -> None:
        """Saves `lora_adapter/` in peft's layout, which transformers loads, and with `hf` the merged model too."""
        if this_rank()[0]:
            return
        self._layers.write(actor, self._layers.saved())
        if hf:
            write_hf(self.model, actor / "huggingface", self._base, weights=self.whole())
            saving.round_export(actor / "huggingface", self._base)

    def restore(self, actor: Path) -> None:
        """Takes the adapter back from `lora_adapter/`. Raises DataError if it is missing or does not fit."""
        saving.copy_weights(self._layers.saved(), read_adapter(actor / FOLDER), actor / FOLDER)

    def _alone(self) -> dict[str, Tensor]:
        found = {}
        for module in self._layers.modules:
            found[module + A] = self._layers.low(module)
            # The scale goes into B, so that explorers add B A without knowing rank or alpha.
            found[module + B] = self._layers.high(module) * self._layers.scale(module)
        return found


class AdapterAsItWas:
    """Implements `Reference`: the adapter's numbers of a moment, put in place while the model is asked."""

    def __init__(self, adapter: Adapter) -> None:
        self._live = {name: value.data for name, value in adapter.parameters().items()}
        self._model = adapter.model
        self._kept = {name: value.clone() for name, value in self._live.items()}

    @contextmanager
    def model(self) -> Iterator[Any]:
        """The model with these numbers. Not within a step's backward pass: the weights change beneath it."""
        # Copied out and in, not exchanged: the optimizer holds the very tensors that are the live ones.
        present = {name: value.clone() for name, value in self._live.items()}
        self._put(self._kept)
        try:
            yield self._model
        finally:
            self._put(present)

    def tensors(self) -> dict[str, Tensor]:
        """The kept numbers, by name."""
        return dict(self._kept)

    def restore(self, tensors: Mapping[str, Tensor], where: Path) -> None:
        """Takes other numbers. Raises DataError if names or shapes differ."""
        saving.copy_weights(self._kept, tensors, where)

    def _put(self, numbers: Mapping[str, Tensor]) -> None:
        for name, value in self._live.items():
            value.copy_(numbers[name])
