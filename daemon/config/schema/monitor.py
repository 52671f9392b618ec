"""Section `monitor`: where curves go besides the log."""

from __future__ import annotations

from typing import Annotated, Literal

from rftd.daemon.config.schema.section import Args, Section, inert, word


class Monitor(Section):
    """`monitor`."""

    monitor_type: Annotated[Literal["tensorboard", "wandb", "mlflow", "swanlab"], word()] = inert("tensorboard")
    monitor_args: Args | None = inert(None)
    detailed_stats: bool = inert(False)
    enable_ray_timeline: bool = inert(False)
