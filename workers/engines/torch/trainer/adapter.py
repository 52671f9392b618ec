"""`Adapter`: a policy that trains a low-rank adapter on this process's device (peft)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rftd.streams.spec.spec import LoraSpec
from rftd.workers.engines.learner import saving
from rftd.workers.engines.learner.low_rank import EarlierNumbers, LowRankLayers, LowRankPolicy, own_name
from rftd.workers.engines.learner.model import buffers_of, write_hf
from rftd.workers.engines.ranks.collectives import this_rank

if TYPE_CHECKING:
    from rftd.workers.engines.torch.trainer.passes import TorchPasses


class Adapter(LowRankPolicy):
    """Implements `Policy` with an adapter; every rank holds the complete model."""

    def __init__(self, model: Any, base: Path, spec: LoraSpec, *, seed: int, merged: bool) -> None:
        """Adds an adapter to `model`, whose folder is `base`. Raises ConfigError for unfit layers, DataError for a
        folder of `spec` without an adapter.
        """
        layers = LowRankLayers(model, base, spec, seed=seed)
        super().__init__(layers.model, layers, base, merged=merged)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns the matrices A and B of each adapted module, by name."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    def whole(self) -> dict[str, Tensor]:
        """Returns the merged weights: base + scale B A for each adapted module, all other weights unchanged."""
        weights = buffers_of(self.model)
        adapted = {f"{module}.weight": module for module in self.layers.modules}
        for parameter, value in self.model.named_parameters():
            if value.requires_grad:
                continue
            name = own_name(parameter)
            # Merged anew for each publication, not in place: the adapter must stay apart from the base.
            module = adapted.get(name)
            weights[name] = value.detach() if module is None else value.detach() + self.layers.change(module)
        return weights

    def freeze(self, passes: TorchPasses) -> TorchPasses:
        """Returns the policy's passes with a copy of the adapter's current numbers, for the reference."""
        numbers = EarlierNumbers(self.parameters())
        return replace(passes, parameters={}, numbers=numbers.in_place, saved=numbers.tensors)

    def write(self, actor: Path, *, hf: bool, writers: int) -> None:
        """Writes `lora_adapter/` in peft's layout, and with `hf` the merged model for transformers; on rank 0 only."""
        if this_rank()[0]:
            return
        self.layers.write(actor, self.layers.saved())
        if hf:
            write_hf(self.model, actor / "huggingface", self.base, weights=self.whole())
            saving.round_export(actor / "huggingface", self.base)
