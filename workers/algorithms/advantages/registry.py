"""Every advantage function by name; importing this imports none of them."""

from __future__ import annotations

from typing import Final

from rftd.workers.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.plugins import Plugins

ADVANTAGES: Final = Plugins[AdvantageFunction](
    "advantage function",
    group="rftd.advantages",
    table={
        "none": "rftd.workers.algorithms.advantages.none:NoAdvantage",
        "grpo": "rftd.workers.algorithms.advantages.grpo:GrpoAdvantage",
    },
)
