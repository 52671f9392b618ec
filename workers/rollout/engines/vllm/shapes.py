"""The tensors that the weights of a model consist of: their names and shapes, and those that its folder holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from rftd.ops.decoding import json_decoder
from rftd.ops.errors import RolloutError
from rftd.workers.models.pretrained import outlined_model
from rftd.workers.weights import safetensors
from rftd.workers.weights.finite import is_finite
from rftd.workers.weights.torch_bytes import tensors_of


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

    def check(self, tensors: Mapping[str, torch.Tensor], *, read_before: Collection[str] = ()) -> None:
        """Returns if these can be the weights of the model; `read_before` are not read again to see if they are finite.

        Raises RolloutError, which names a tensor that cannot.
        """
        shapes = self.shapes
        missing = [name for name in shapes if name not in tensors and name not in self.tied]
        unknown = [name for name in tensors if name not in shapes]
        wrong = [name for name, tensor in tensors.items() if name in shapes and tuple(tensor.shape) != shapes[name]]
        new = [name for name in tensors if name not in read_before]
        broken = [name for name in new if not is_finite(tensors[name])]
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


def base_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of the model folder, mapped: all workers of a machine share what was read of them.

    Raises WorkError if a file is missing, or is none of safetensors.
    """
    index = folder / "model.safetensors.index.json"
    files = {"model.safetensors"}
    if index.is_file():
        files = set(json_decoder(_Index).decode(index.read_bytes()).weight_map.values())
    stored = [tensors_of(safetensors.read(folder / file)) for file in sorted(files)]
    return {name: tensor for each in stored for name, tensor in each.items()}


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]
    """File by tensor."""
