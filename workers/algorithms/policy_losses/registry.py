"""Every policy loss by name; importing this imports none of them."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.policy_losses.policy_loss import PolicyLoss
from rftd.workers.plugins import Plugins

POLICY_LOSSES: Final = Plugins[PolicyLoss](
    "policy loss",
    group="rftd.policy_losses",
    table={
        "ppo": "rftd.workers.algorithms.policy_losses.ppo:PpoLoss",
        "sft": "rftd.workers.algorithms.policy_losses.sft:SftLoss",
    },
)
