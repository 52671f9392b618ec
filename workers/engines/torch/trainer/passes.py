"""`TorchPasses`: forward passes of a model on one device, with and without a gradient. `ValueModel`: a critic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rftd.workers.engines.learner.backend import Figure, LossOver
from rftd.workers.engines.learner.model import decoder_of, load_model, tensors_of
from rftd.workers.engines.learner.optimizer import Parameters
from rftd.workers.engines.torch.trainer.forward import hidden_of, logprobs_of, signals_of, squares_of
from rftd.workers.engines.torch.trainer.packing import PackedRows

Context = Callable[[], AbstractContextManager[object]]
"""Function returning a context for computations."""


class ValueModel(torch.nn.Module):
    """A decoder below a head of one number, the value before the next token; initially every value is zero."""

    def __init__(self, folder: Path, device: torch.device, *, trust_remote_code: bool) -> None:
        """Reads the decoder of the model in `folder`. Raises DataError for a folder without a model."""
        super().__init__()
        self.decoder = decoder_of(load_model(folder, device, trust_remote_code=trust_remote_code))
        self.head = torch.nn.Linear(self.decoder.config.hidden_size, 1, bias=False, device=device)
        torch.nn.init.zeros_(self.head.weight)

    def values(self, batch: PackedRows, device: torch.device) -> Tensor:
        """Returns the value before each trained token  # [N] float32"""
        values: Tensor = self.head(hidden_of(self.decoder, batch, device).to(self.head.weight.dtype))
        return values.squeeze(-1).float()


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchPasses:
    """Implements `Backend` with a model on one device; every rank holds the complete model."""

    model: Any
    """A language model, or a `ValueModel`."""
    device: torch.device
    """Device of the model."""
    precision: Context
    """Returns the autocast context of forward passes."""
    parameters: Parameters = field(default_factory=dict)
    """Parameters to train, by name; empty for a frozen model."""
    numbers: Context = nullcontext
    """Returns the context of passes without gradient, in which the weights may have a reference's numbers."""
    saved: Callable[[], Mapping[str, Tensor]] | None = None
    """Returns the tensors of a checkpoint; None: the model's weights and persistent buffers."""
    offloaded = None
    """None: the model stays on its device."""

    @property
    def vocabulary_tokens(self) -> int:
        """Number of the model's token ids."""
        rows: int = self.model.get_input_embeddings().num_embeddings
        return rows

    @torch.no_grad()
    def forward(self, micro_batches: Sequence[PackedRows], figures: frozenset[Figure]) -> list[dict[str, Tensor]]:
        """Returns the figures of each micro-batch's tokens, without gradient."""
        # The context of numbers inside that of autocast, whose casts of weights end with it.
        with self.precision(), self.numbers():
            return [self._figures(micro, figures) for micro in micro_batches]

    def gradients(
        self, micro_batches: Sequence[PackedRows], figures: frozenset[Figure], loss: LossOver
    ) -> list[dict[str, Tensor]]:
        """Computes `loss` of each micro-batch, and adds its gradient to the accumulated one; returns each micro-batch's
        terms.
        """
        terms_of_each = []
        for number, micro in enumerate(micro_batches):
            with self.precision():
                values = self._figures(micro, figures)
            # Outside autocast: log-probabilities are float32, and the loss's sums over thousands of tokens stay so.
            value, terms = loss(number, values)
            value.backward()  # type: ignore[no-untyped-call]
            terms_of_each.append(terms)
        return terms_of_each

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors of a checkpoint by name, not copied."""
        return tensors_of(self.model) if self.saved is None else dict(self.saved())

    def _figures(self, micro: PackedRows, figures: frozenset[Figure]) -> dict[str, Tensor]:
        """Computes the requested figures of a micro-batch's tokens  # [N] each"""
        if "values" in figures:
            return {"values": self.model.values(micro, self.device)}
        columns: dict[str, Tensor] = {}
        if figures & {"logprobs", "entropies"}:
            columns["logprobs"], columns["entropies"] = logprobs_of(self.model, micro, self.device)
        if "entropy_signals" in figures:
            columns["entropy_signals"] = signals_of(self.model, micro, self.device)
        if "squares" in figures:
            columns["squares"] = squares_of(self.model, micro, self.device)
        return columns
