"""`VerlPasses`: forward passes of a model over the micro-batches of all ranks, with and without a gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.engines.learner.backend import Figure, LossOver
from rftd.workers.engines.learner.optimizer import Offloaded, Parameters
from rftd.workers.engines.verl.group import Shares
from rftd.workers.engines.verl.packing import PackedTexts
from rftd.workers.engines.verl.wrapping import Outputs, text_batch

_NAMES: Final[Mapping[Figure, str]] = {"logprobs": "log_probs", "entropies": "entropy"}
"""verl's names of figures, where they differ."""


@dataclass(frozen=True, slots=True)
class VerlPasses:
    """Implements `Backend` with a model of verl's, spread over ranks."""

    model: Any
    """A `PolicyModel`, a `CriticModel`, or the policy with an adapter's earlier numbers."""
    shares: Shares
    """Division of the micro-batches among ranks."""
    parameters: Parameters = field(default_factory=dict)
    """Parameters to train, by name; empty for a frozen model."""

    @property
    def offloaded(self) -> Offloaded:
        """The model, which the optimizer moves between device and host."""
        model: Offloaded = self.model
        return model

    @property
    def vocabulary_tokens(self) -> int:
        """Number of the model's token ids."""
        tokens: int = self.model.vocabulary_tokens
        return tokens

    def forward(self, micro_batches: Sequence[PackedTexts], figures: frozenset[Figure]) -> list[dict[str, Tensor]]:
        """Returns the figures of all micro-batches' tokens on every rank, without gradient."""
        names = sorted(figures)
        sizes = [len(micro.targets) for micro in micro_batches]
        values = torch.zeros((len(names), sum(sizes)), device=self.shares.device)
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        with self.model.running(gradient=False):
            for number in self.shares.own_numbers(len(micro_batches)):
                micro = micro_batches[number] if number < len(micro_batches) else None
                _, output = self.model.outputs_of(self._data(micro, figures))
                if micro is not None:
                    span = slice(starts[number], starts[number] + sizes[number])
                    for line, column in enumerate(_columns(output, micro, names).values()):
                        values[line, span] = column
        parts = torch.split(self.shares.summed(values), sizes, dim=1)
        return [dict(zip(names, part, strict=True)) for part in parts]

    def gradients(
        self, micro_batches: Sequence[PackedTexts], figures: frozenset[Figure], loss: LossOver
    ) -> list[dict[str, Tensor]]:
        """Computes `loss` of each micro-batch, and adds its gradient to the accumulated one; returns the terms of all
        micro-batches.
        """
        own: dict[int, dict[str, float]] = {}
        rounds = self.shares.own_numbers(len(micro_batches))
        with self.model.running(gradient=True):
            for number in rounds:
                micro = micro_batches[number] if number < len(micro_batches) else None
                terms: dict[str, Tensor] = {}

                def loss_of(output: Outputs, number: int = number, terms: dict[str, Tensor] = terms) -> Tensor:
                    if number >= len(micro_batches):
                        # A round without a micro-batch of its own: the rank lends its shards to the others.
                        return next(iter(output.values())).sum() * 0.0
                    value, own_terms = loss(number, _columns(output, micro_batches[number], sorted(figures)))
                    terms.update(own_terms)
                    # FSDP takes the mean of the ranks' gradients, where losses are weighted to be summed up.
                    return value * self.shares.count

                with self.model._gradient_sync_context(is_last_micro_batch=number == rounds[-1]):
                    value, _ = self.model.outputs_of(self._data(micro, figures), loss_of)
                    value.backward()
                if micro is not None:
                    # One transfer: each float() of a term would wait for all kernels that are queued.
                    numbers = torch.stack([term.double() for term in terms.values()]).tolist() if terms else []
                    own[number] = dict(zip(terms, numbers, strict=True))
        return [
            {name: torch.tensor(value) for name, value in terms_of_one.items()}
            for terms_of_one in self.shares.gathered_terms(own, len(micro_batches))
        ]

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors of a checkpoint by name, not copied; DTensors on several ranks."""
        tensors: dict[str, Tensor] = self.model.tensors()
        return tensors

    def _data(self, micro: PackedTexts | None, figures: frozenset[Figure]) -> Any:
        """Returns a micro-batch in verl's form; for None, a text of two tokens."""
        inverse = None if micro is None else micro.inverse_temperatures
        return text_batch(
            torch.as_tensor([0, 0] if micro is None else micro.ids),
            torch.as_tensor([2] if micro is None else micro.lengths),
            torch.as_tensor([1.0] if micro is None else micro.temperatures, dtype=torch.float32),
            None if inverse is None else torch.as_tensor(inverse),
            use_remove_padding=self.model.use_remove_padding,
            entropy="entropies" in figures,
            figures=" ".join(sorted(figures & {"entropy_signals", "squares"})),
        )


def _columns(output: Outputs, micro: PackedTexts, figures: Sequence[Figure]) -> dict[str, Tensor]:
    """Selects the figures of the trained tokens from those of all positions  # [P] -> [N] each"""
    columns: dict[str, Tensor] = {}
    for figure in figures:
        places = output[_NAMES.get(figure, figure)]
        columns[figure] = places.index_select(0, to_device(micro.source, places.device))
    return columns
