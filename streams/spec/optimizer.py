"""Section `algorithm.optimizer` of the experiment file; the log keeps it as it acts, with every default filled in."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from rftd.streams.spec.declaration import InUnit, Share, Upstream

_Decay: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]


class Optimizer(msgspec.Struct, frozen=True, kw_only=True):
    """`algorithm.optimizer`; it reaches the actor only."""

    lr: Annotated[float, Meta(ge=0, le=1)] = 1e-6
    """The learning rate, once the warm-up is over."""
    lr_warmup_steps: Annotated[int, Meta(ge=-1, le=10**9), InUnit("steps")] = -1
    """Steps in which the learning rate rises from 0; -1: the ratio counts."""
    lr_warmup_steps_ratio: Share = 0.0
    """The warm-up as a share of all steps."""
    min_lr_ratio: Annotated[Share, Upstream("It was 0 in the guide's release.")] = 0.01
    """The share of `lr` at which `cosine` ends."""
    lr_scheduler_type: Literal["constant", "cosine"] = "constant"
    """The learning rate after the warm-up: constant, or down a cosine."""
    optimizer_type: Literal["adam", "adamw", "sgd"] = "adam"
    """AdamW (`adam` and `adamw` are the same), or SGD."""
    betas: tuple[_Decay, _Decay] = (0.9, 0.999)
    """Adam's decay of the first and the second moment."""
    eps: Annotated[float, Meta(gt=0, le=1)] = 1e-8
    """rftd only: Adam's, which is added to the root of the second moment."""
    weight_decay: Annotated[float, Meta(ge=0, le=10), Upstream("verl decays norms and biases, too.")] = 0.01
    """The decay of weights in each step, times the learning rate; see `decay_all` for what is left out."""
    decay_all: bool = False
    """rftd only: decay norms, biases and whatever has one dimension too."""
    clip_grad: Annotated[float, Meta(gt=0)] = 1.0
    """The longest gradient of a step: a longer one is scaled down to it."""

    def with_counted_warmup(self, total_steps: int) -> Optimizer:
        """The optimizer with its warm-up in steps, if `total_steps` are known, which they are if they are not 0."""
        steps = self.lr_warmup_steps
        ratio = self.lr_warmup_steps_ratio
        if not ratio or (steps < 0 and not total_steps):
            return self
        counted = steps if steps >= 0 else int(ratio * total_steps)
        return msgspec.structs.replace(self, lr_warmup_steps=counted, lr_warmup_steps_ratio=0.0)
