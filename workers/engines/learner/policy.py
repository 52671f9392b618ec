"""`Policy`: the model under training, opened, published, saved and restored by an engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from rftd.workers.engines.learner.optimizer import Parameters


class Policy(Protocol):
    """A model, and its weights under training; all ranks make equal calls."""

    @property
    def model(self) -> Any:
        """The model of the forward passes, with gradients for the weights under training."""
        ...

    def parameters(self) -> Parameters:
        """The parameters under training, by name."""
        ...

    def published(self) -> Mapping[str, Tensor]:
        """The tensors for explorers by name, spread ones as the rank's parts, not copied where already present."""
        ...

    def write(self, actor: Path, *, hf: bool, writers: int) -> None:
        """Saves the weights into a checkpoint's `actor`, and with `hf` a model for transformers.

        At most `writers` ranks write at once; 0: all.
        """
        ...

    def restore(self, actor: Path) -> None:
        """Restores what `write` saved. Raises DataError, on all ranks, for missing files or another model's."""
        ...
