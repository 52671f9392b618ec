"""The critic's arguments in `engine_args`, the same for every engine with a critic; importable without torch."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from rftd.streams.spec.sections import Optimizer

_Above: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
"""Type of a number above 0."""
_Least: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
"""Type of a number of at least 0."""
_Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
"""Type of a number from 0 to 1."""


class CriticArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The critic's optimizer and bounds; `algorithm.optimizer` applies to the policy only."""

    critic_lr: _Least = 1e-5
    """The critic's learning rate."""
    critic_lr_scheduler_type: Literal["constant", "cosine"] = "constant"
    """Schedule of the critic's learning rate."""
    critic_lr_warmup_steps: Annotated[int, msgspec.Meta(ge=-1)] = -1
    """Steps of the critic's linear warm-up; -1: `critic_lr_warmup_steps_ratio` applies."""
    critic_lr_warmup_steps_ratio: _Share = 0.0
    """Share of the stage's steps in which the critic's learning rate rises."""
    critic_min_lr_ratio: _Share = 0.01
    """Final learning rate of a cosine, as a share of `critic_lr`."""
    critic_weight_decay: _Least = 0.01
    """Weight decay of the critic."""
    critic_clip: _Above = 0.5
    """Maximum change of a value within one batch's loss, in units of the return."""
    critic_grad_clip: _Least = 1.0
    """Maximum norm of the critic's gradient; 0: unbounded."""

    def optimizer(self, total_steps: int, *, decay_all: bool) -> Optimizer:
        """Returns the settings of the critic's optimizer and learning rate schedule in a stage of `total_steps`;
        `decay_all`: weight decay applies to norms and biases too.
        """
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
