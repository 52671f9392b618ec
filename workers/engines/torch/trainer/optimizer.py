"""The optimizer: AdamW or SGD, and its state by parameter name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from rftd.ops.errors import ConfigError, DataError
from rftd.streams.spec.optimizer import Optimizer

Parameters = Mapping[str, torch.nn.Parameter]
_SPARED: Final = re.compile(r"bias$|(^|\.)ln(_?[a-z0-9]+)?\.|norm(_?[0-9]+)?(\.|$)", re.IGNORECASE)
"""Names of biases (with several experts they have two dimensions) and of what belongs to a norm."""
_FUSED: Final = ("cpu", "cuda")
"""The kinds of device whose AdamW runs as one kernel."""


def make_optimizer(spec: Optimizer, parameters: Parameters) -> torch.optim.Optimizer:
    """A fresh optimizer. Raises ConfigError for an unknown kind."""
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
    """True for matrices; False for norms and biases, for what has one dimension, and for what says so itself.

    Source: Radford et al. 2018, GPT, section 4.1 ("all non bias or gain weights"); Mamba marks its own parameters.
    """
    return parameter.ndim > 1 and not _SPARED.search(name) and not getattr(parameter, "_no_weight_decay", False)


def _groups(spec: Optimizer, parameters: Parameters) -> list[dict[str, Any]]:
    """The parameters that are decayed, and the others; a group without any is left out."""
    # Decay is a property of the name and shape, so a resumed run groups the parameters as the first one did.
    decayed = {name: spec.decay_all or decays(name, parameter) for name, parameter in parameters.items()}
    groups = [
        {"params": [parameters[name] for name, each in decayed.items() if each is chosen], "weight_decay": decay}
        for chosen, decay in ((True, spec.weight_decay), (False, 0.0))
    ]
    return [group for group in groups if group["params"]]


def same_kind(one: str, other: str) -> bool:
    """True if what one keeps can go on in the other: `adam` and `adamw` are the same here."""
    return one == other or {one, other} == {"adam", "adamw"}


def tensors_in(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """The tensors of its state."""
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


def state_of(optimizer: torch.optim.Optimizer, parameters: Parameters) -> dict[str, Tensor]:
    """The tensors that the optimizer keeps, by `<kind>.<parameter>`; empty before its first step."""
    return {
        f"{kind}.{name}": value
        for name, parameter in parameters.items()
        for kind, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_state(optimizer: torch.optim.Optimizer, parameters: Parameters, state: Mapping[str, Tensor]) -> None:
    """Puts the state that `state_of` gave back. Raises DataError if it belongs to other parameters."""
    fused = {parameter for group in optimizer.param_groups if group.get("fused") for parameter in group["params"]}
    for key, value in state.items():
        kind, _, name = key.partition(".")
        if name not in parameters or (kind != "step" and parameters[name].shape != value.shape):
            raise DataError(
                f"optimizer state {key!r} of shape {tuple(value.shape)} fits no parameter of the model",
                fix="resume with the model that the checkpoint was made from",
            )
        # A fused optimizer counts its steps beside the parameter, any other on the host, whoever saved the counter.
        parameter = parameters[name]
        on_host = kind == "step" and parameter not in fused
        optimizer.state[parameter][kind] = value.to("cpu" if on_host else parameter.device, copy=True)
