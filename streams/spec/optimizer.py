"""Section `algorithm.optimizer` of the experiment file; the log stores its effective form, with every default filled
in.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from rftd.streams.spec.declaration import InUnit, Share, Upstream

_Decay: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]


class Optimizer(msgspec.Struct, frozen=True, kw_only=True):
    """`algorithm.optimizer`, for the actor only."""

    lr: Annotated[float, Meta(ge=0, le=1)] = 1e-6
    """Learning rate after the warm-up."""
    lr_warmup_steps: Annotated[int, Meta(ge=-1, le=10**9), InUnit("steps")] = -1
    """Steps of the learning rate's rise from 0; -1: by the ratio."""
    lr_warmup_steps_ratio: Share = 0.0
    """Warm-up as a share of all steps."""
    min_lr_ratio: Annotated[Share, Upstream("It was 0 in the guide's release.")] = 0.01
    """Final share of `lr` with `cosine`."""
    lr_scheduler_type: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or down a cosine."""
    optimizer_type: Literal["adam", "adamw", "sgd"] = "adam"
    """AdamW (`adam` and `adamw` are synonyms), or SGD."""
    betas: tuple[_Decay, _Decay] = (0.9, 0.999)
    """Adam's decay of the first and the second moment."""
    eps: Annotated[float, Meta(gt=0, le=1)] = 1e-8
    """rftd only: Adam's epsilon."""
    weight_decay: Annotated[float, Meta(ge=0, le=10), Upstream("verl decays norms and biases, too.")] = 0.01
    """Weight decay per step, times the learning rate; see `decay_all` for exceptions."""
    decay_all: bool = False
    """rftd only: also decay norms, biases and other 1-D parameters."""
    clip_grad: Annotated[float, Meta(gt=0)] = 1.0
    """Maximum gradient norm; larger gradients are scaled down."""

    def with_counted_warmup(self, total_steps: int) -> Optimizer:
        """Returns the optimizer with its warm-up in steps, if `total_steps` are known (not 0)."""
        steps = self.lr_warmup_steps
        ratio = self.lr_warmup_steps_ratio
        if not ratio or (steps < 0 and not total_steps):
            return self
        counted = steps if steps >= 0 else int(ratio * total_steps)
        return msgspec.structs.replace(self, lr_warmup_steps=counted, lr_warmup_steps_ratio=0.0)
