"""`WholePolicy`: a policy that trains all weights of a model spread over ranks."""

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
from rftd.workers.engines.ranks.collectives import raise_on_all_ranks
from rftd.workers.engines.ranks.spool import SpreadWeights
from rftd.workers.engines.ranks.spread import copy_shards
from rftd.workers.engines.verl.opened_model import frozen_model, open_model
from rftd.workers.engines.verl.passes import VerlPasses
from rftd.workers.engines.verl.saving import write_hf_folder
from rftd.workers.engines.verl.wrapping import Wrapping


class WholePolicy:
    """Implements `Policy` for a model with every weight under training."""

    def __init__(self, base: Path, wrapping: Wrapping) -> None:
        """Opens the model of the folder `base`. Raises DataError for a folder without a model, ConfigError for unfit
        settings.
        """
        self.model: Any = open_model(base, wrapping)
        self.wrapping = wrapping
        self._base = base

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns all parameters of the model, by name."""
        parameters: dict[str, torch.nn.Parameter] = self.model.parameters
        return parameters

    def published(self) -> Mapping[str, Tensor]:
        """Returns weights and persistent buffers by name, not copied."""
        tensors: dict[str, Tensor] = self.model.tensors()
        return tensors

    def spread(self, experiment: ExperimentSpec | None) -> SpreadWeights:
        """Returns this rank's parts of the published tensors, in bfloat16 where all explorers use bfloat16."""
        tensors = self.published()
        return SpreadTensors(tensors, rounded=rounded_for(experiment, self.model.outline, tensors))

    def freeze(self, passes: VerlPasses, *, offload: bool) -> VerlPasses:
        """Returns the policy's passes over a second model with its current weights, for the reference; with `offload`,
        it stays on the host between passes.
        """
        model = frozen_model(self._base, self.wrapping, offload=offload)
        # The present numbers: those of its folder are others after the first stage.
        copy_shards(model.tensors(), self.model.tensors())
        return replace(passes, model=model, parameters={})

    def write(self, actor: Path, *, hf: bool, writers: int) -> None:
        """Writes the weights into `actor` itself, or with `hf` into `huggingface/`; into both if `huggingface/` is
        rounded.
        """
        if hf:
            write_hf_folder(actor / "huggingface", self.published(), self._base)
        if not hf or saving.exported_dtype(self._base) != saving.RESUME_DTYPE:
            saving.write_weights(actor, self.published(), self._base, model=self.model.outline, writers=writers)

    def restore(self, actor: Path) -> None:
        """Loads the weights from `actor` or `huggingface/`. Raises DataError on all ranks."""
        with raise_on_all_ranks():
            saving.read_policy(actor, self.model.tensors(), trust_remote_code=self.wrapping.trust_remote_code)
