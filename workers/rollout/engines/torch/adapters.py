"""`AdaptedWeights`: whole weights from an adapter and the base weights that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rftd.ops.errors import RolloutError
from rftd.workers.weights.adapter import changes


class AdaptedWeights:
    """Keeps the base weights of adapted modules, for the network itself holds the sum."""

    def __init__(self) -> None:
        self._base: dict[str, torch.Tensor] = {}

    def whole(self, adapter: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Base + B A for each adapted module, in float32. `own` are the network's present weights, the base's at first.

        Raises RolloutError if the adapter belongs to another model.
        """
        pairs = changes(adapter)
        if not self._base:
            self._base = {name: own[name].clone() for name in pairs if name in own}
        if pairs.keys() != self._base.keys():
            odd = sorted(pairs.keys() ^ self._base.keys())[0]
            raise RolloutError(
                f"the adapter and the model differ in {odd!r}", fix="publish adapters of one set of modules"
            )
        made = {}
        for name, (low, high) in pairs.items():
            base = self._base[name]
            if low.shape[0] != high.shape[1] or base.shape != (high.shape[0], low.shape[1]):
                raise RolloutError(
                    f"the adapter of {name!r} has shapes {tuple(low.shape)} and {tuple(high.shape)}, "
                    f"its weight {tuple(base.shape)}",
                    fix="publish adapters made from the model that the explorers run",
                )
            made[name] = base.float() + (high.float() @ low.float()).to(base.device)
        return made
