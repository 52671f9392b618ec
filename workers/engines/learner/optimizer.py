"""AdamW or SGD for the models of a stage: gradients clipped, steps taken, state saved by parameter name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from rftd.ops.errors import ConfigError, DataError
from rftd.streams.spec.sections import Optimizer
from rftd.workers.engines.ranks.torch_shards import is_spread

Parameters = Mapping[str, torch.nn.Parameter]
"""Trained parameters of a model, by name."""
_SPARED: Final = re.compile(r"bias$|(^|\.)ln(_?[a-z0-9]+)?\.|norm(_?[0-9]+)?(\.|$)", re.IGNORECASE)
"""Names of biases (two-dimensional with several experts) and of parameters of norms, exempt from weight decay."""
_FUSED: Final = ("cpu", "cuda")
"""Kinds of devices on which AdamW runs as one kernel."""


class Offloaded(Protocol):
    """A model that moves weights, gradient or moments to the host between passes."""

    optimizer: Any
    """The optimizer whose state is moved with the model."""

    def wake(self) -> None:
        """Moves weights, gradient and the optimizer's state to the device."""
        ...

    def rest(self) -> None:
        """Moves the offloaded tensors to the host."""
        ...


class StageOptimizer:
    """The optimizer of one model in a stage; on several ranks, each rank updates its own parts of the parameters."""

    def __init__(self, spec: Optimizer, parameters: Parameters, offloaded: Offloaded | None = None) -> None:
        """Creates the optimizer without moments; `offloaded` is the model, if it moves to the host between passes.
        Raises ConfigError for an unknown kind.
        """
        self.inner = make_optimizer(spec, parameters)
        self._parameters = parameters
        self._offloaded = offloaded
        if offloaded is not None:
            offloaded.optimizer = self.inner

    def clip(self, limit: float) -> float:
        """Scales the gradient down to the norm `limit`, unless `limit` is 0; returns the norm before, over all
        ranks.
        """
        # Before the norm, not only before the step: sums over ranks need the gradient on the devices.
        self._wake()
        parameters = [parameter for parameter in self._parameters.values() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        if is_spread(norm):
            norm = norm.full_tensor()
        if limit > 0:
            torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        return float(norm)

    def step(self, rate: float) -> None:
        """Takes one step with the learning rate `rate`, on the device."""
        for group in self.inner.param_groups:
            group["lr"] = rate
        # With moments alone on the host, weights and moments would be on different devices.
        self._wake()
        self.inner.step()

    def forget(self) -> None:
        """Sets the gradient to zero, then moves an offloaded model to the host."""
        self.inner.zero_grad(set_to_none=True)
        if self._offloaded is not None:
            self._offloaded.rest()

    def tensors(self) -> dict[str, Tensor]:
        """Returns the optimizer's state by `<kind>.<parameter>`, spread over ranks like the parameters; empty before
        the first step.
        """
        return {
            f"{kind}.{name}": value
            for name, parameter in self._parameters.items()
            for kind, value in self.inner.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def begin_state(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Creates a state of zeros, to be overwritten by a checkpoint's; returns its tensors. `shapes` are the complete
        shapes by name.

        Raises DataError for a name or shape of another model's parameter.
        """
        for key, shape in shapes.items():
            kind, _, name = key.partition(".")
            parameter = self._parameters.get(name)
            if parameter is None or (kind != "step" and tuple(parameter.shape) != tuple(shape)):
                raise DataError(
                    f"optimizer state {key!r} of shape {tuple(shape)} fits no parameter of the model",
                    fix="resume with the model that the checkpoint was made from",
                )
            self.inner.state[parameter][kind] = self._zeros(kind, parameter)
        return self.tensors()

    def _zeros(self, kind: str, parameter: torch.nn.Parameter) -> Tensor:
        """Returns a tensor of zeros for one part of a parameter's state; the `step` count is a single number."""
        if kind != "step":
            return torch.zeros_like(parameter, requires_grad=False)
        # Fused AdamW counts its steps on the parameter's device, any other optimizer on the host.
        fused = any(group.get("fused") for group in self.inner.param_groups)
        return torch.zeros((), device=parameter.device if fused else "cpu")

    def _wake(self) -> None:
        """Moves an offloaded model to the device."""
        if self._offloaded is not None:
            self._offloaded.wake()


def make_optimizer(spec: Optimizer, parameters: Parameters) -> torch.optim.Optimizer:
    """Returns a fresh optimizer. Raises ConfigError for an unknown kind."""
    groups = _groups(spec, parameters)
    if spec.optimizer_type in ("adam", "adamw"):
        # One pass over each parameter instead of ten, and on a GPU one kernel over many of them.
        fused = all(parameter.device.type in _FUSED for parameter in parameters.values())
        return torch.optim.AdamW(
            groups,
            lr=spec.lr,
            betas=spec.betas,
            eps=spec.eps,
            fused=fused or None,
            foreach=None if fused else True,
        )
    if spec.optimizer_type == "sgd":
        return torch.optim.SGD(groups, lr=spec.lr, foreach=True)
    raise ConfigError(
        f"unknown optimizer {spec.optimizer_type!r}",
        field="algorithm.optimizer.optimizer_type",
        fix="use adam, adamw or sgd",
    )


def decays(name: str, parameter: torch.nn.Parameter) -> bool:
    """True for matrices, which have weight decay; False for norms, biases, one-dimensional parameters, and parameters
    marked by the model.

    Source: Radford et al. 2018, GPT, section 4.1 ("all non bias or gain weights"); Mamba marks its own parameters.
    """
    return parameter.ndim > 1 and not _SPARED.search(name) and not getattr(parameter, "_no_weight_decay", False)


def _groups(spec: Optimizer, parameters: Parameters) -> list[dict[str, Any]]:
    """Returns torch's parameter groups: with weight decay and without; an empty group is omitted."""
    # Decay is a property of the name and shape, so a resumed run groups the parameters as the first one did.
    decayed = {name: spec.decay_all or decays(name, parameter) for name, parameter in parameters.items()}
    groups = [
        {
            "params": [parameters[name] for name, decay in decayed.items() if decay is chosen],
            "weight_decay": weight_decay,
        }
        for chosen, weight_decay in ((True, spec.weight_decay), (False, 0.0))
    ]
    return [group for group in groups if group["params"]]


def same_kind(saved: str, present: str) -> bool:
    """True if two kinds of optimizer have interchangeable states; `adam` and `adamw` are equal in rftd."""
    return saved == present or {saved, present} == {"adam", "adamw"}
