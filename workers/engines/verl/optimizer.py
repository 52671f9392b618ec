"""The optimizer of a stage over weights that are spread over ranks: clipped, stepped, saved by parameter name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rftd.ops.errors import DataError
from rftd.streams.spec.optimizer import Optimizer
from rftd.workers.engines.torch.trainer.optimizer import Parameters, make_optimizer, state_of


class Offloaded(Protocol):
    """A model of which something may wait on the host while it is not used."""

    optimizer: Any
    """verl moves the state of the optimizer that it knows."""

    def wake(self) -> None:
        """Has weights, gradient and the optimizer's state on the device."""
        ...

    def rest(self) -> None:
        """Leaves the device's memory where offloading was asked for."""
        ...


class ShardedOptimizer:
    """Each rank steps its own part of each parameter, on its device."""

    def __init__(self, spec: Optimizer, parameters: Parameters, model: Offloaded) -> None:
        self._parameters = parameters
        self._model = model
        self.inner = make_optimizer(spec, parameters)
        model.optimizer = self.inner

    def clip(self, limit: float) -> float:
        """Scales the gradient of all ranks down to the norm `limit`, if that is above 0; returns the norm before."""
        # Here and not only in `step`: sums over ranks are of what lies on their devices.
        self._model.wake()
        held = [parameter for parameter in self._parameters.values() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm([value.grad for value in held if value.grad is not None])
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        if limit > 0:
            torch.nn.utils.clip_grads_with_norm_(held, limit, norm)
        return float(norm)

    def step(self, rate: float) -> None:
        """Takes one step; `forget`, which follows, lets the model rest, without a gradient to be moved."""
        for group in self.inner.param_groups:
            group["lr"] = rate
        # Where only moments are offloaded, weights and moments would lie apart.
        self._model.wake()
        self.inner.step()

    def forget(self) -> None:
        """Drops the gradient, and lets the model rest."""
        self.inner.zero_grad(set_to_none=True)
        self._model.rest()

    def state(self) -> dict[str, Tensor]:
        """Its tensors, by `<kind>.<parameter>`, of which moments are spread as the parameter is."""
        return state_of(self.inner, self._parameters)

    def begin_state(self, names: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Makes the state that tensors of these names and shapes are copied into, and returns it.

        Raises DataError if they belong to other parameters.
        """
        for key, shape in names.items():
            kind, _, name = key.partition(".")
            parameter = self._parameters.get(name)
            if parameter is None or (kind != "step" and tuple(parameter.shape) != shape):
                raise DataError(
                    f"optimizer state {key!r} of shape {shape} fits no parameter of the model",
                    fix="resume with the model that the checkpoint was made from",
                )
            fused = any(group.get("fused") for group in self.inner.param_groups)
            made: Tensor = torch.zeros_like(parameter)
            if kind == "step":
                made = torch.zeros((), device=parameter.device if fused else "cpu")
            self.inner.state[parameter][kind] = made
        return self.state()
