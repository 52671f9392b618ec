"""`Policy`: what is trained of a model, published and saved."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rftd.workers.engines.ranks.collectives import this_rank
from rftd.workers.engines.torch.trainer import saving
from rftd.workers.engines.torch.trainer.model import buffers_of, tensors_of, write_description, write_hf


class Reference(Protocol):
    """The policy as it once was."""

    def model(self) -> AbstractContextManager[Any]:
        """A model to compute its log-probabilities with, until the context ends."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint keeps of it, by name."""
        ...

    def restore(self, tensors: Mapping[str, Tensor], where: Path) -> None:
        """Takes what `tensors` gave. Raises DataError if names or shapes differ."""
        ...


class Policy(Protocol):
    """A model, and those of its weights that learn."""

    @property
    def model(self) -> Any:
        """The model that computes hidden states, with gradients for what learns."""
        ...

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that learn, by name."""
        ...

    def published(self) -> dict[str, Tensor]:
        """The tensors that explorers get, by name; not copied where they exist as they are."""
        ...

    def freeze(self) -> Reference:
        """The policy as it is now."""
        ...

    def write(self, actor: Path, *, hf: bool) -> None:
        """Saves what training needs into a checkpoint's `actor`, and with `hf` a model for transformers."""
        ...

    def restore(self, actor: Path) -> None:
        """Takes what `write` saved. Raises DataError if it is missing or of another model."""
        ...


class WholeModel:
    """Implements `Policy` for a model of which every weight learns."""

    def __init__(self, model: Any, base: Path, *, trust_remote_code: bool) -> None:
        self.model = model
        self._base = base
        self._trusted = trust_remote_code
        # Looked up once: they are changed in place only.
        self._parameters: dict[str, torch.nn.Parameter] = dict(model.named_parameters())
        self._tensors = tensors_of(model)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """All parameters of the model, by name."""
        return self._parameters

    def published(self) -> dict[str, Tensor]:
        """The weights themselves, and what beside them does not learn."""
        return self._tensors

    def freeze(self) -> FrozenCopy:
        """A copy of the model."""
        # deepcopy keeps tied weights tied; a new model read from the base would be another one after the first stage.
        return FrozenCopy(copy.deepcopy(self.model).requires_grad_(False))

    def write(self, actor: Path, *, hf: bool) -> None:
        """Saves the weights in `actor` itself, which transformers loads then, or with `hf` in `huggingface/`.

        They are in both if `huggingface/` is rounded to the dtype of the model.
        """
        # All ranks have them whole, and in parts transformers could not read them.
        if this_rank()[0]:
            return
        if hf:
            write_hf(self.model, actor / "huggingface", self._base)
            saving.round_export(actor / "huggingface", self._base)
        # The same numbers twice would double a checkpoint of many GiB.
        if not hf or saving.exported_dtype(self._base) != saving.OWN:
            saving.write_file(actor / "model.safetensors", self._tensors)
            write_description(self.model.config, actor, self._base, architecture=type(self.model).__name__)

    def restore(self, actor: Path) -> None:
        """Takes the weights back, from whichever of the two is there. Raises DataError."""
        weights = saving.read_weights(actor, trust_remote_code=self._trusted)
        saving.copy_weights(self._tensors, _with_buffers(weights, self.model), actor)


class FrozenCopy:
    """Implements `Reference` with a model of its own."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @contextmanager
    def model(self) -> Iterator[Any]:
        """The copy."""
        yield self._model

    def tensors(self) -> dict[str, Tensor]:
        """The weights and buffers of the copy."""
        return tensors_of(self._model)

    def restore(self, tensors: Mapping[str, Tensor], where: Path) -> None:
        """Writes the tensors over the copy."""
        saving.copy_weights(tensors_of(self._model), _with_buffers(tensors, self._model), where)


def _with_buffers(weights: Mapping[str, Tensor], model: Any) -> dict[str, Tensor]:
    """The weights, and the model's own buffers for those that the checkpoint has not: they do not learn."""
    return buffers_of(model) | dict(weights)
