"""GRPO under the guides' older name."""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.workers.algorithms.definition import AlgorithmDefinition
from rftd.workers.algorithms.definitions.grpo import GRPO

GRPO_VERL: Final[AlgorithmDefinition] = msgspec.structs.replace(
    GRPO,
    name="grpo_verl",
    summary="grpo under its older name: the advantages are the same.",
    when="Files that were written for it; else take grpo.",
    advantage="grpo_verl",
)
