"""Forward passes of a model over the micro-batches of all ranks, with and without a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.engines.verl.group import Shares
from rftd.workers.engines.verl.model import Found, text_batch
from rftd.workers.engines.verl.packing import PackedTexts
from rftd.workers.learning.stage.learner import Terms


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes of one model; every rank makes the same calls."""

    model: Any
    """A `PolicyModel` or a `CriticModel`."""
    shares: Shares

    def values(
        self,
        micro_batches: Sequence[PackedTexts],
        names: Sequence[str],
        *,
        entropy: bool = False,
        figures: str = "",
    ) -> list[dict[str, Tensor]]:
        """The model's values of the trained tokens of each micro-batch  # [N] each, on every rank"""
        sizes = [len(micro.targets) for micro in micro_batches]
        known = torch.zeros((len(names), sum(sizes)), device=self.shares.device)
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        with self.model.running(gradient=False):
            for number in self.shares.rounds(len(micro_batches)):
                micro = micro_batches[number] if number < len(micro_batches) else None
                found = self.model.found(self._data(micro, entropy=entropy, figures=figures))[1]
                if micro is not None:
                    place = slice(starts[number], starts[number] + sizes[number])
                    for line, name in enumerate(names):
                        known[line, place] = self.of_targets(found[name], micro)
        parts = torch.split(self.shares.summed(known), sizes, dim=1)
        return [dict(zip(names, part, strict=True)) for part in parts]

    def accumulate(
        self,
        micro_batches: Sequence[PackedTexts],
        loss: Callable[[int, Found], Terms],
        *,
        entropy: bool = False,
    ) -> list[dict[str, Tensor]]:
        """Adds the gradients of a loss of each micro-batch to those before; returns the figures of all of them."""
        own: dict[int, dict[str, float]] = {}
        rounds = self.shares.rounds(len(micro_batches))
        with self.model.running(gradient=True):
            for number in rounds:
                micro = micro_batches[number] if number < len(micro_batches) else None
                terms: dict[str, Tensor] = {}

                def taken(found: Found, number: int = number, terms: dict[str, Tensor] = terms) -> tuple[Tensor, None]:
                    if number >= len(micro_batches):
                        # A round without a micro-batch of its own: the rank lends its shards to the others.
                        return next(iter(found.values())).sum() * 0.0, None
                    value, figures = loss(number, found)
                    terms.update(figures)
                    # FSDP takes the mean of the ranks' gradients, where losses are weighted to be summed up.
                    return value * self.shares.count, None

                with self.model._gradient_sync_context(is_last_micro_batch=number == rounds[-1]):
                    value, _, _ = self.model.found(self._data(micro, entropy=entropy), taken)
                    value.backward()
                if micro is not None:
                    # One transfer: each float() of a figure would wait for all kernels that are queued.
                    figures = torch.stack([each.double() for each in terms.values()]).tolist() if terms else []
                    own[number] = dict(zip(terms, figures, strict=True))
        found = self.shares.told(own, len(micro_batches))
        return [{name: torch.tensor(value) for name, value in figures.items()} for figures in found]

    @staticmethod
    def of_targets(places: Tensor, micro: PackedTexts) -> Tensor:
        """The values of the trained tokens, of those of all places  # [P] -> [N]"""
        found: Tensor = places.index_select(0, to_device(micro.source, places.device))
        return found

    def _data(self, micro: PackedTexts | None, *, entropy: bool = False, figures: str = "") -> Any:
        if micro is None:
            return self._made([0, 0], [2], [1.0], None, entropy=entropy, figures=figures)
        inverse = micro.inverse_temperatures
        return self._made(micro.ids, micro.lengths, micro.temperatures, inverse, entropy=entropy, figures=figures)

    def _made(self, ids: Any, lengths: Any, temperatures: Any, inverse: Any, *, entropy: bool, figures: str) -> Any:
        return text_batch(
            torch.as_tensor(ids),
            torch.as_tensor(lengths),
            torch.as_tensor(temperatures, dtype=torch.float32),
            None if inverse is None else torch.as_tensor(inverse),
            use_remove_padding=self.model.use_remove_padding,
            entropy=entropy,
            figures=figures,
        )
