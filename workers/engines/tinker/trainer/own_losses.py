"""`ServiceLoss`: the loss by which the service computes an objective itself, in one pass instead of two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rftd.workers.engines.tinker.service import Loss
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.losses.sft import SftLoss
from rftd.workers.learning.losses.token_ratios import ImportanceSamplingLoss, PpoLoss
from rftd.workers.learning.stage.micro_batch import MicroBatch

_NO_DUAL_CLIP_FROM: Final = 1e6
"""Smallest `clip_ratio_c` taken as no dual clip: so large a ratio is beyond the reach of the service's float32."""


@dataclass(frozen=True, slots=True)
class ServiceLoss:
    """A loss that the service computes by itself, with its settings, in place of an equal objective."""

    name: Loss
    """Name of the loss at the service."""
    config: Mapping[str, float]
    """Settings of the loss, by the service's names."""

    def columns(self, micro: MicroBatch) -> dict[str, NDArray[np.float32]]:
        """Returns the numbers of the micro-batch's N trained tokens, by the parameter names of the loss  # [N] each

        The weights of tokens are multiplied into the advantages: they are positive, and every loss here scales with A.
        """
        weights = micro.weights.whole
        if self.name == "cross_entropy":
            return {"weights": weights}
        return {"advantages": micro.advantages * weights, "logprobs": micro.old_logprobs}


def service_loss(objective: Objective) -> ServiceLoss | None:
    """Returns the service's loss equal to the objective; None without one: the gradient is then computed here."""
    if objective.entropy.coef != 0 or objective.kl.coef > 0 or objective.kl_penalty.coef > 0:
        return None
    # Parts that depend on a whole batch, or drop tokens, cannot be computed by the service.
    if objective.token_advantage is not None or not objective.correction.plain:
        return None
    loss = objective.policy_loss
    # By the exact class: a derived class may compute differently.
    if type(loss) is SftLoss and not loss.weighted:
        return ServiceLoss("cross_entropy", {})
    if type(loss) is ImportanceSamplingLoss:
        return ServiceLoss("importance_sampling", {})
    if type(loss) is PpoLoss and _is_plain_ppo(loss):
        return ServiceLoss("ppo", {"clip_low_threshold": 1 - loss.low, "clip_high_threshold": 1 + loss.high})
    return None


def _is_plain_ppo(loss: PpoLoss) -> bool:
    """True if a PPO loss has no effective dual clip, no sequence mask, and no fallback to the policy gradient."""
    return (
        loss.clip_ratio_c >= _NO_DUAL_CLIP_FROM
        and not loss.enable_sequence_masking
        and not loss.fallback_to_policy_gradient
    )
