"""Every policy loss by name; importing this imports none of them."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.policy_losses.policy_loss import PolicyLoss
from rftd.workers.plugins import Plugins

_HERE: Final = "rftd.workers.algorithms.policy_losses"

POLICY_LOSSES: Final = Plugins[PolicyLoss](
    "policy loss",
    group="rftd.policy_losses",
    table={
        "ppo": f"{_HERE}.ppo:PpoLoss",
        "gspo": f"{_HERE}.gspo:GspoLoss",
        "cispo": f"{_HERE}.cispo:CispoLoss",
        "sapo": f"{_HERE}.sapo:SapoLoss",
        "topr": f"{_HERE}.topr:ToprLoss",
        "opmd": f"{_HERE}.opmd:OpmdLoss",
        "sppo": f"{_HERE}.sppo:SppoLoss",
        "rec": f"{_HERE}.rec:RecLoss",
        "reinforce": f"{_HERE}.reinforce:ReinforceLoss",
        "importance_sampling": f"{_HERE}.importance_sampling:ImportanceSamplingLoss",
        "m2po": f"{_HERE}.m2po:M2poLoss",
        "dppo": f"{_HERE}.dppo:DppoLoss",
        "ipo": f"{_HERE}.dppo:IpoLoss",
        "mix": f"{_HERE}.mix:MixLoss",
        "mix_chord": f"{_HERE}.mix:MixChordLoss",
        "dpo": f"{_HERE}.dpo:DpoLoss",
        "sft": f"{_HERE}.sft:SftLoss",
        "sft_is": f"{_HERE}.sft:SftIsLoss",
        "sft_phi": f"{_HERE}.sft:SftPhiLoss",
    },
)
