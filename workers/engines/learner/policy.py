"""`Policy`: the interface to the model under training: opened, published, saved and restored by an engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from rftd.workers.engines.learner.optimizer import Parameters


class Policy(Protocol):
    """A model and its trained parameters; all ranks make equal calls."""

    @property
    def model(self) -> Any:
        """The model that computes forward passes, with gradients for the trained parameters."""
        ...

    def parameters(self) -> Parameters:
        """Returns the trained parameters by name."""
        ...

    def published(self) -> Mapping[str, Tensor]:
        """Returns the tensors for explorers by name, not copied where they exist already; of a spread tensor, this
        rank's part.
        """
        ...

    def write(self, actor: Path, *, hf: bool, writers: int) -> None:
        """Writes the weights into a checkpoint's folder `actor`, and with `hf` a model for transformers.

        At most `writers` ranks write at a time; 0: all.
        """
        ...

    def restore(self, actor: Path) -> None:
        """Loads the weights written by `write`. Raises DataError, on all ranks, for missing files or another
        model's.
        """
        ...
