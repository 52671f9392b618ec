"""Every operator by name: of the experience pipeline and of the task pipeline. Third parties add operators through the
entry-point groups `rftd.operators` and `rftd.task_operators`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rftd.ops.plugins import Plugins

if TYPE_CHECKING:
    from rftd.workers.pipelines.operator import Operator
    from rftd.workers.pipelines.task_operator import TaskOperator

_OPERATORS_MODULE: Final = "rftd.workers.pipelines.operators"
_TASK_OPERATORS_MODULE: Final = "rftd.workers.pipelines.task_operators"

OPERATORS: Final[Plugins[Operator]] = Plugins(
    "operator",
    group="rftd.operators",
    table={
        "reward_filter": f"{_OPERATORS_MODULE}:RewardFilter",
        "invalid_reward_filter": f"{_OPERATORS_MODULE}:InvalidRewardFilter",
        "reward_std_filter": f"{_OPERATORS_MODULE}:RewardStdFilter",
        "dapo_dynamic_sampling": f"{_OPERATORS_MODULE}:DapoDynamicSampling",
        "mask_response_truncated": f"{_OPERATORS_MODULE}:MaskResponseTruncated",
        "pass_rate_calculator": f"{_OPERATORS_MODULE}:PassRateCalculator",
        "reward_shaping_mapper": f"{_OPERATORS_MODULE}:RewardShapingMapper",
        "data_juicer": "rftd.workers.pipelines.juicer_operator:DataJuicerOperator",
        "ruler": "rftd.workers.pipelines.ruler:RulerOperator",
    },
)
"""Operators of experience pipelines by name."""

TASK_OPERATORS: Final[Plugins[TaskOperator]] = Plugins(
    "task operator",
    group="rftd.task_operators",
    table={
        "text_length_filter": f"{_TASK_OPERATORS_MODULE}:TextLengthFilter",
        "words_num_filter": f"{_TASK_OPERATORS_MODULE}:WordsNumFilter",
        "alphanumeric_filter": f"{_TASK_OPERATORS_MODULE}:AlphanumericFilter",
        "character_repetition_filter": f"{_TASK_OPERATORS_MODULE}:CharacterRepetitionFilter",
        "document_deduplicator": f"{_TASK_OPERATORS_MODULE}:DocumentDeduplicator",
        "specified_numeric_field_filter": f"{_TASK_OPERATORS_MODULE}:SpecifiedNumericFieldFilter",
        "field_score_mapper": f"{_TASK_OPERATORS_MODULE}:FieldScoreMapper",
    },
)
"""Operators of task pipelines by name."""
