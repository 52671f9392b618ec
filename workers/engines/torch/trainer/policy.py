"""`WholeModel`: a policy that trains all weights of a model on this process's device."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rftd.workers.engines.learner import saving
from rftd.workers.engines.learner.model import tensors_of, write_hf
from rftd.workers.engines.ranks.collectives import this_rank

if TYPE_CHECKING:
    from rftd.workers.engines.torch.trainer.passes import TorchPasses


class WholeModel:
    """Implements `Policy` for a model with every weight under training."""

    def __init__(self, model: Any, base: Path, *, trust_remote_code: bool) -> None:
        """Wraps a loaded model; `base` is the folder with its tokenizer."""
        self.model = model
        self._base = base
        self._trusted = trust_remote_code
        # Looked up once: they are changed in place only.
        self._parameters: dict[str, torch.nn.Parameter] = dict(model.named_parameters())
        self._tensors = tensors_of(model)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns all parameters of the model, by name."""
        return self._parameters

    def published(self) -> dict[str, Tensor]:
        """Returns weights and persistent buffers by name, not copied."""
        return self._tensors

    def freeze(self, passes: TorchPasses) -> TorchPasses:
        """Returns the policy's passes over a copy of the model, for the reference."""
        # deepcopy keeps tied weights tied; a new model read from the base would be another one after the first stage.
        return replace(passes, model=copy.deepcopy(self.model).requires_grad_(False), parameters={})

    def write(self, actor: Path, *, hf: bool, writers: int) -> None:
        """Writes the weights into `actor` itself as a model for transformers, or with `hf` into `huggingface/`.

        Into both if `huggingface/` is rounded to another dtype than float32.
        """
        if hf and not this_rank()[0]:
            write_hf(self.model, actor / "huggingface", self._base)
            saving.round_export(actor / "huggingface", self._base)
        # The same numbers twice would double a checkpoint of many GiB.
        if not hf or saving.exported_dtype(self._base) != saving.RESUME_DTYPE:
            saving.write_weights(actor, self._tensors, self._base, model=self.model, writers=writers)

    def restore(self, actor: Path) -> None:
        """Loads the weights from `actor` or `huggingface/`. Raises DataError."""
        saving.read_policy(actor, self._tensors, trust_remote_code=self._trusted)
