"""`SpreadPolicy`: what is trained of a model that is spread over ranks, published and saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.engines.ranks.collectives import together
from rftd.workers.engines.ranks.spool import SpreadWeights
from rftd.workers.engines.torch.trainer.saving import OWN, exported_dtype
from rftd.workers.engines.torch.trainer.snapshot import SpreadTensors, rounded_for
from rftd.workers.engines.verl import saving
from rftd.workers.engines.verl.model import PolicyModel, Wrapping, open_model
from rftd.workers.engines.verl.shards import copy_shards


class SpreadPolicy(Protocol):
    """A model of verl's, and those of its weights that learn; every rank makes the same calls."""

    @property
    def model(self) -> Any:
        """The `PolicyModel` that computes log-probabilities."""
        ...

    def learned(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that learn, by name."""
        ...

    def published(self) -> Mapping[str, Tensor]:
        """The tensors that explorers get, by name, of which each rank has a part."""
        ...

    def spread(self, experiment: ExperimentSpec | None) -> SpreadWeights:
        """The published tensors as the controller of several ranks takes them, rounded as explorers round them."""
        ...

    def freeze(self, *, offload: bool) -> Any:
        """A model for passes without a gradient that stays as the policy is now. `offload`: it waits on the host."""
        ...

    def write(self, actor: Path, *, hf: bool, strategy: saving.SaveStrategy) -> None:
        """Saves what training needs into a checkpoint's `actor`, and with `hf` a model for transformers."""
        ...

    def restore(self, actor: Path) -> None:
        """Takes what `write` saved. Raises DataError, on all ranks, if it is missing or of another model."""
        ...


class WholePolicy:
    """Implements `SpreadPolicy` for a model of which every weight learns."""

    def __init__(self, base: Path, wrapping: Wrapping) -> None:
        """Raises DataError if the folder holds no model, ConfigError for what cannot be wrapped so."""
        self.model: Any = open_model(PolicyModel, base, wrapping)
        self._base = base
        self._wrapping = wrapping

    def learned(self) -> dict[str, torch.nn.Parameter]:
        """All parameters of the model."""
        found: dict[str, torch.nn.Parameter] = self.model.parameters
        return found

    def published(self) -> Mapping[str, Tensor]:
        """The weights themselves, and what beside them does not learn."""
        found: dict[str, Tensor] = self.model.tensors()
        return found

    def spread(self, experiment: ExperimentSpec | None) -> SpreadWeights:
        """Each rank gives what it holds."""
        tensors = self.published()
        return SpreadTensors(tensors, rounded=rounded_for(experiment, self.model.outline, tensors))

    def freeze(self, *, offload: bool) -> Any:
        """A second model, spread like the first."""
        found = frozen_model(self._base, self._wrapping, offload=offload)
        # The policy as it is now: its folder is another one after the first stage.
        copy_shards(found.tensors(), self.model.tensors())
        return found

    def write(self, actor: Path, *, hf: bool, strategy: saving.SaveStrategy) -> None:
        """Saves the weights in `actor` itself, or with `hf` in `huggingface/`; in both if the latter is rounded."""
        if hf:
            saving.write_hf_folder(actor / "huggingface", self.published(), self._base)
        if not hf or exported_dtype(self._base) != OWN:
            saving.write_weights(actor, self.published(), strategy, self._base, module=self.model.outline)

    def restore(self, actor: Path) -> None:
        """Takes the weights back, from whichever of the two is there."""
        with together():
            saving.read_policy(actor, self.model.tensors(), trust_remote_code=self._wrapping.trust_remote_code)


def frozen_model(folder: Path, wrapping: Wrapping, *, offload: bool) -> Any:
    """A model of the folder that does not learn, spread over all ranks. Raises as `open_model`."""
    found = open_model(PolicyModel, folder, wrapping, offload=offload)
    for parameter in found.parameters.values():
        parameter.requires_grad_(False)
    return found
