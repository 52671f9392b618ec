"""Every operator of the experience pipeline by name; third parties add one through the entry-point group
`rftd.operators`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rftd.ops.plugins import Plugins

if TYPE_CHECKING:
    from rftd.workers.pipelines.operator import Operator

_HERE: Final = "rftd.workers.pipelines.operators"

OPERATORS: Final[Plugins[Operator]] = Plugins(
    "operator",
    group="rftd.operators",
    table={
        "reward_filter": f"{_HERE}:RewardFilter",
        "invalid_reward_filter": f"{_HERE}:InvalidRewardFilter",
        "reward_std_filter": f"{_HERE}:RewardStdFilter",
        "dapo_dynamic_sampling": f"{_HERE}:DapoDynamicSampling",
        "mask_response_truncated": f"{_HERE}:MaskResponseTruncated",
        "pass_rate_calculator": f"{_HERE}:PassRateCalculator",
        "reward_shaping_mapper": f"{_HERE}:RewardShapingMapper",
    },
)
