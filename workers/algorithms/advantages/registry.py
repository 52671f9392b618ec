"""Every advantage function by name; importing this imports none of them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rftd.streams.spec import AlgorithmSpec
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


def advantages_of(spec: AlgorithmSpec, rewards: NDArray[np.float32]) -> NDArray[np.float32]:
    """The advantages of one closed group, by the function that the algorithm names  # [G] -> [G]"""
    function = ADVANTAGES.open(spec.advantage, spec.advantage_args)
    return function.advantages(np.asarray(rewards, np.float32))
