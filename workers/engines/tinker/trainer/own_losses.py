"""`ServiceLoss`: an objective that the service computes by itself, exactly as ours: one pass instead of two."""

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

_FAR: Final = 1e6
"""The bound of a ratio beyond which the bounds of our loss no longer matter to a float32 of the service."""


@dataclass(frozen=True, slots=True)
class ServiceLoss:
    """The loss by the service's name, and what it is told beside the tokens."""

    name: Loss
    config: Mapping[str, float]

    def columns(self, micro: MicroBatch) -> dict[str, NDArray[np.float32]]:
        """The columns of the micro-batch's trained tokens, by the service's names  # [N] each

        Our weights of tokens go into the advantages: they are positive, and every loss here scales with A.
        """
        weights = micro.weights.whole
        if self.name == "cross_entropy":
            return {"weights": weights}
        return {"advantages": micro.advantages * weights, "logprobs": micro.old_logprobs}


def service_loss(objective: Objective) -> ServiceLoss | None:
    """The service's loss that is exactly the objective; None if there is none, so that its gradient is made here."""
    if objective.entropy.coef != 0 or objective.kl.coef > 0 or objective.kl_penalty.coef > 0:
        return None
    # What is known only of a whole batch, or is taken off some tokens, never reaches the service.
    if objective.token_advantage is not None or not objective.correction.plain:
        return None
    loss = objective.policy_loss
    # By the exact class: one derived from it may compute otherwise.
    if type(loss) is SftLoss and not loss.weighted:
        return ServiceLoss("cross_entropy", {})
    if type(loss) is ImportanceSamplingLoss:
        return ServiceLoss("importance_sampling", {})
    if type(loss) is PpoLoss and _plain(loss):
        return ServiceLoss("ppo", {"clip_low_threshold": 1 - loss.low, "clip_high_threshold": 1 + loss.high})
    return None


def _plain(loss: PpoLoss) -> bool:
    """True without the second clip, which bounds bad tokens, and without masks."""
    return loss.clip_ratio_c >= _FAR and not loss.enable_sequence_masking and not loss.fallback_to_policy_gradient
