# unclipped.py
"""An algorithm made of parts that are there."""

from rftd.workers.api import AlgorithmDefinition, Needs

UNCLIPPED = AlgorithmDefinition(
    name="unclipped",
    summary="GRPO with so wide a clip range that nothing is clipped.",
    source="this page",
    repeat_times=2,
    advantage="grpo",
    policy_loss="ppo",
    policy_loss_args={"clip_range": 10.0},
    needs=Needs(groups=True, old_logprobs=True),
)
