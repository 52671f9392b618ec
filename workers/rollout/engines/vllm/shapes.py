"""The tensors that the weights of a model consist of: names and shapes, read from its folder without any weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from rftd.ops.errors import RolloutError
from rftd.workers.models.pretrained import outlined_model


@dataclass(frozen=True)
class Expected:
    """The tensors of a model's weights."""

    shapes: Mapping[str, tuple[int, ...]]
    tied: frozenset[str]
    """Names that share another tensor's memory, so that weights may leave them out."""

    @classmethod
    def of(cls, folder: Path) -> Expected:
        """Those of the model in `folder`. Raises DataError if it holds none that transformers knows."""
        model = outlined_model(folder, dtype=torch.float32)
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        return cls(shapes, frozenset(model.all_tied_weights_keys))

    def check(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Returns if these can be the weights of the model. Raises RolloutError, which names a tensor that cannot."""
        shapes = self.shapes
        missing = [name for name in shapes if name not in tensors and name not in self.tied]
        unknown = [name for name in tensors if name not in shapes]
        wrong = [name for name, tensor in tensors.items() if name in shapes and tuple(tensor.shape) != shapes[name]]
        broken = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
        for names, what in (
            (missing, "lack"),
            (unknown, "hold, unknown to this model,"),
            (wrong, "have another shape of"),
            (broken, "have NaN or infinity in"),
        ):
            if names:
                raise RolloutError(
                    f"the new weights {what} {names[0]!r} and {len(names) - 1} more tensors",
                    fix="publish finite weights of the model that the explorers run",
                )
