"""Section `synchronizer`: when explorers take new weights."""

from __future__ import annotations

from typing import Annotated, Literal

from rftd.daemon.config.schema.section import Count, Natural, Seconds, Section, inert, word

Method = Annotated[str, word(online="nccl", offline="checkpoint")]
"""`nccl`, or the name of a weight channel, which may be a third party's."""
Style = Annotated[
    Literal["fixed", "explorer_driven", "trainer_driven", "fully_async"],
    word(dynamic_by_explorer="explorer_driven", dynamic_by_trainer="trainer_driven"),
]


class Synchronizer(Section):
    """`synchronizer`."""

    sync_method: Method = "nccl"
    sync_style: Style = "fixed"
    sync_interval: Count = 1
    explorer_sync_interval: Count | None = None
    trainer_sync_interval: Count | None = None
    sync_offset: Natural = 0
    sync_timeout: Seconds = 3600.0
    memory_dir: str = ""
    group_name: str = inert("rollout_weight_sync")
    wait_for_checkpoint: bool = inert(False)
