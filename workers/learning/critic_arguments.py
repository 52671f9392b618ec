"""The arguments of a critic below `engine_args`, equal for every engine with a critic; importable without torch."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from rftd.streams.spec.sections import Optimizer

_Above: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
_Least: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
_Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]


class CriticArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The critic's own optimizer and bounds: `algorithm.optimizer` is the policy's alone."""

    critic_lr: _Least = 1e-5
    """The critic's learning rate."""
    critic_lr_scheduler_type: Literal["constant", "cosine"] = "constant"
    critic_lr_warmup_steps: Annotated[int, msgspec.Meta(ge=-1)] = -1
    """-1: the ratio counts."""
    critic_lr_warmup_steps_ratio: _Share = 0.0
    """The share of the stage's steps in which its learning rate rises."""
    critic_min_lr_ratio: _Share = 0.01
    """The least of a cosine, as a share of `critic_lr`."""
    critic_weight_decay: _Least = 0.01
    critic_clip: _Above = 0.5
    """The farthest that one step may move a value, in units of the return."""
    critic_grad_clip: _Least = 1.0
    """The bound of its gradient's norm; 0: none."""

    def optimizer(self, total_steps: int, *, decay_all: bool) -> Optimizer:
        """The critic's optimizer in a stage of `total_steps`, with the schedule of the learning rate."""
        counted = self.critic_lr_warmup_steps >= 0
        ratio_steps = int(self.critic_lr_warmup_steps_ratio * total_steps)
        return Optimizer(
            lr=self.critic_lr,
            weight_decay=self.critic_weight_decay,
            decay_all=decay_all,
            lr_warmup_steps=self.critic_lr_warmup_steps if counted else ratio_steps,
            lr_scheduler_type=self.critic_lr_scheduler_type,
            min_lr_ratio=self.critic_min_lr_ratio,
        )
