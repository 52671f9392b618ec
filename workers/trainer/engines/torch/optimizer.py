"""The optimizer: AdamW or SGD, the learning rate of a step, and its state by parameter name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from rftd.ops.errors import ConfigError, DataError
from rftd.streams.spec import OptimizerSpec

Parameters = Mapping[str, torch.nn.Parameter]


def make_optimizer(spec: OptimizerSpec, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """A fresh optimizer. Raises ConfigError for an unknown kind."""
    parameters = list(parameters)
    if spec.kind in ("adam", "adamw"):
        # One pass over each parameter instead of ten. Not on a GPU, where it would want its step counters there.
        fused = all(parameter.device.type == "cpu" for parameter in parameters)
        return torch.optim.AdamW(
            parameters,
            lr=spec.lr,
            betas=spec.betas,
            weight_decay=spec.weight_decay,
            fused=fused or None,
            foreach=None if fused else True,
        )
    if spec.kind == "sgd":
        return torch.optim.SGD(parameters, lr=spec.lr, weight_decay=spec.weight_decay, foreach=True)
    raise ConfigError(
        f"unknown optimizer {spec.kind!r}", field="algorithm.optimizer.optimizer_type", fix="use adam, adamw or sgd"
    )


def same_kind(one: str, other: str) -> bool:
    """True if what one keeps can go on in the other: `adam` and `adamw` are the same here."""
    return one == other or {one, other} == {"adam", "adamw"}


def learning_rate(spec: OptimizerSpec, stage_step: int, total_steps: int) -> float:
    """The learning rate of a step, the first being 1: a linear warm-up, then constant or a cosine.

    The cosine begins with the step that has the whole rate, and the stage's last step has the least.
    """
    if stage_step <= spec.warmup_steps:
        return spec.lr * stage_step / spec.warmup_steps
    if spec.scheduler == "constant":
        return spec.lr
    if spec.scheduler == "cosine":
        whole = max(1, spec.warmup_steps)
        progress = min(1.0, (stage_step - whole) / max(1, total_steps - whole))
        return spec.lr * (spec.min_lr_ratio + (1 - spec.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * progress)))
    raise ConfigError(
        f"unknown schedule {spec.scheduler!r}",
        field="algorithm.optimizer.lr_scheduler_type",
        fix="use constant or cosine",
    )


def state_of(optimizer: torch.optim.Optimizer, parameters: Parameters) -> dict[str, Tensor]:
    """`<kind>.<parameter>` -> tensor, for each tensor that the optimizer keeps; empty before its first step."""
    return {
        f"{kind}.{name}": value
        for name, parameter in parameters.items()
        for kind, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_state(optimizer: torch.optim.Optimizer, parameters: Parameters, state: Mapping[str, Tensor]) -> None:
    """Puts back what `state_of` gave. Raises DataError if it belongs to other parameters."""
    for key, value in state.items():
        kind, _, name = key.partition(".")
        if name not in parameters or (kind != "step" and parameters[name].shape != value.shape):
            raise DataError(
                f"optimizer state {key!r} of shape {tuple(value.shape)} fits no parameter of the model",
                fix="resume with the model that the checkpoint was made from",
            )
        # Step counters stay on the CPU: a fused or foreach optimizer reads them there.
        parameter = parameters[name]
        placed = value.clone() if kind == "step" else value.to(parameter.device, copy=True)
        optimizer.state[parameter][kind] = placed
