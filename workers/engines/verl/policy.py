"""`WholePolicy`: a policy with all weights of a model spread over ranks under training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.engines.learner import saving
from rftd.workers.engines.learner.snapshot import SpreadTensors, rounded_for
from rftd.workers.engines.ranks.collectives import together
from rftd.workers.engines.ranks.spool import SpreadWeights
from rftd.workers.engines.ranks.spread import copy_shards
from rftd.workers.engines.verl.opened_model import frozen_model, open_model
from rftd.workers.engines.verl.passes import VerlPasses
from rftd.workers.engines.verl.saving import write_hf_folder
from rftd.workers.engines.verl.wrapping import Wrapping


class WholePolicy:
    """Implements `Policy` for a model with every weight under training."""

    def __init__(self, base: Path, wrapping: Wrapping) -> None:
        """Raises DataError for a folder without a model, ConfigError for an unfit wrapping."""
        self.model: Any = open_model(base, wrapping)
        self.wrapping = wrapping
        self._base = base

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """All parameters of the model, by name."""
        parameters: dict[str, torch.nn.Parameter] = self.model.parameters
        return parameters

    def published(self) -> Mapping[str, Tensor]:
        """The weights themselves, and the persistent buffers."""
        tensors: dict[str, Tensor] = self.model.tensors()
        return tensors

    def spread(self, experiment: ExperimentSpec | None) -> SpreadWeights:
        """The published tensors for the controller, a rank's own parts, rounded as explorers round them."""
        tensors = self.published()
        return SpreadTensors(tensors, rounded=rounded_for(experiment, self.model.outline, tensors))

    def freeze(self, passes: VerlPasses, *, offload: bool) -> VerlPasses:
        """Passes like the policy's over a second model, spread like the first. `offload`: it waits on the host."""
        model = frozen_model(self._base, self.wrapping, offload=offload)
        # The present numbers: those of its folder are others after the first stage.
        copy_shards(model.tensors(), self.model.tensors())
        return replace(passes, model=model, parameters={})

    def write(self, actor: Path, *, hf: bool, writers: int) -> None:
        """Saves the weights in `actor` itself, or with `hf` in `huggingface/`; in both if the latter is rounded."""
        if hf:
            write_hf_folder(actor / "huggingface", self.published(), self._base)
        if not hf or saving.exported_dtype(self._base) != saving.OWN:
            saving.write_weights(actor, self.published(), self._base, model=self.model.outline, writers=writers)

    def restore(self, actor: Path) -> None:
        """Restores the weights from either of the two."""
        with together():
            saving.read_policy(actor, self.model.tensors(), trust_remote_code=self.wrapping.trust_remote_code)
