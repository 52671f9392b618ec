"""The tensors of a model's weights: their names and shapes, and the tensors in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import torch

from rftd.ops.decoding import json_decoder
from rftd.ops.errors import RolloutError
from rftd.workers.models.pretrained import outlined_model
from rftd.workers.weights import safetensors
from rftd.workers.weights.finite import is_finite
from rftd.workers.weights.torch_bytes import tensors_of

BROKEN: Final = "have NaN or infinity in"
"""Words for weights that are not all finite."""


@dataclass(frozen=True)
class Expected:
    """Names and shapes of a model's weights, for checking new weights."""

    shapes: Mapping[str, tuple[int, ...]]
    """Shapes by the tensors' names."""
    tied: frozenset[str]
    """Names sharing another tensor's memory, optional in new weights."""

    @classmethod
    def of(cls, folder: Path) -> Expected:
        """Reads the model in `folder`. Raises DataError if it has none known to transformers."""
        model = outlined_model(folder, dtype=torch.float32)
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        return cls(shapes, frozenset(model.all_tied_weights_keys))

    def check(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raises RolloutError, naming a tensor, if names or shapes differ from the model's; no numbers are read."""
        shapes = self.shapes
        refuse([name for name in shapes if name not in tensors and name not in self.tied], "lack")
        refuse([name for name in tensors if name not in shapes], "hold, unknown to this model,")
        wrong = [name for name, tensor in tensors.items() if name in shapes and tuple(tensor.shape) != shapes[name]]
        refuse(wrong, "have another shape of")


def check_finite(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises RolloutError, naming a tensor, unless all numbers are finite."""
    refuse([name for name, tensor in tensors.items() if not is_finite(tensor)], BROKEN)


def refuse(names: Sequence[str], fault: str) -> None:
    """Raises RolloutError if there are names: the new weights have this `fault` in the named tensors."""
    if names:
        raise RolloutError(
            f"the new weights {fault} {names[0]!r} and {len(names) - 1} more tensors",
            fix="publish finite weights of the model that the explorers run",
        )


def base_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Returns the tensors of the model folder, mapped: all workers of a machine share the pages.

    Raises WorkError if a file is missing, or not in the safetensors format.
    """
    index = folder / "model.safetensors.index.json"
    files = {"model.safetensors"}
    if index.is_file():
        files = set(json_decoder(_Index).decode(index.read_bytes()).weight_map.values())
    stored = [tensors_of(safetensors.read(folder / file)) for file in sorted(files)]
    return {name: tensor for tensors in stored for name, tensor in tensors.items()}


class _Index(msgspec.Struct, frozen=True):
    """Content of an index file of safetensors."""

    weight_map: dict[str, str]
    """File by tensor."""
