"""Section `synchronizer` of the experiment file; the log stores its effective form, with every default filled in."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from rftd.streams.log.stored_path import OwnPath
from rftd.streams.spec.declaration import (
    HARMLESS,
    PATH,
    PLAIN,
    PLUGIN,
    FieldEffect,
    InUnit,
    Natural,
    OlderWords,
    Seconds,
    Steps,
    Upstream,
)

SyncStyle: TypeAlias = Annotated[
    Literal["fixed", "explorer_driven", "trainer_driven", "fully_async"],
    OlderWords(dynamic_by_explorer="explorer_driven", dynamic_by_trainer="trainer_driven"),
]


class Synchronizer(msgspec.Struct, frozen=True, kw_only=True):
    """`synchronizer`: the schedule and the channel of new weights for explorers."""

    sync_method: Annotated[
        str,
        PLUGIN,
        OlderWords(online="nccl", offline="checkpoint"),
        Upstream("`nccl` is used even if not set."),
    ] = "nccl"
    """How weights reach explorers: `checkpoint` by files, `memory` by a shared mapping, `nccl` from GPU to GPU, or a
    third-party weight channel by its name."""
    sync_style: SyncStyle = "fixed"
    """When explorers load new weights: at fixed steps, when either side asks, or as soon as published."""
    sync_interval: Steps = 1
    """Steps between two synchronisations, for a side without its own interval."""
    explorer_sync_interval: Steps | None = None
    """Explore steps between two synchronisations; None: `sync_interval`."""
    trainer_sync_interval: Steps | None = None
    """Training steps between two publications of weights; None: `sync_interval`."""
    sync_offset: Annotated[Natural, InUnit("steps")] = 0
    """Extra explore steps before the first synchronisation."""
    sync_timeout: Annotated[Seconds, Upstream("The guide shows 1200.")] = 3600.0
    """Maximum wait of explorers for new weights; then they continue with the old ones."""
    memory_dir: Annotated[OwnPath, PATH] = ""
    """rftd only: the folder of the channel `memory`; empty: the machine's memory."""
    group_name: Annotated[str, PLAIN, HARMLESS] = "rollout_weight_sync"
    wait_for_checkpoint: Annotated[bool, FieldEffect("harmless", "ignored, as in Trinity-RFT")] = False
