"""Section `buffer`: the tasks that are explored, the data that are trained on, and their amounts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rftd.daemon.config.schema.section import (
    Args,
    Count,
    LocalPath,
    Natural,
    Seconds,
    Section,
    Url,
    inert,
    section,
    word,
)
from rftd.daemon.config.schema.taskset import Format, Taskset


class ReplayBuffer(Section):
    """`replay_buffer`: priorities and reuse of experiences."""

    enable: bool = False
    priority_fn: str = "linear_decay"
    reuse_cooldown_time: Annotated[float, Field(ge=0)] | None = None
    priority_fn_args: Args = {"decay": 2.0}


class ExperienceBuffer(Section):
    """`buffer.trainer_input.experience_buffer`, or one of `auxiliary_buffers`."""

    name: str = ""
    storage_type: Annotated[Literal["queue", "sql", "file"], word()] = "queue"
    path: Annotated[Url, LocalPath()] = None
    capacity: Count = 10000
    """Experiences that wait or rest at once: beyond it no more are explored, or the least are retired (replay)."""
    max_read_timeout: Seconds = 1800.0
    replay_buffer: ReplayBuffer = section(ReplayBuffer)
    split: str = "train"
    subset_name: str | None = None
    format: Format = section(Format)
    schema_type: Annotated[Literal["auto", "experience", "sft", "dpo", "kto", "cpt"], word()] = "auto"
    """The kind of a dataset's rows. The algorithm says it, so it is checked only; kto alone takes two kinds."""
    max_retry_times: Natural = inert(3)
    max_retry_interval: Seconds = inert(1.0)
    limit_rows: Count | None = None
    """rftd's own: only the first rows of a dataset."""


class ExplorerInput(Section):
    """`buffer.explorer_input`."""

    taskset: Taskset | None = None
    tasksets: list[Taskset] = []
    eval_tasksets: list[Taskset] = []
    default_workflow_type: str | None = None
    default_eval_workflow_type: str | None = None
    default_reward_fn_type: str | None = None


class TrainerInput(Section):
    """`buffer.trainer_input`."""

    experience_buffer: ExperienceBuffer = section(ExperienceBuffer)
    auxiliary_buffers: dict[str, ExperienceBuffer] = {}
    """Datasets by name, for `sample_strategy: mix`."""


class Buffer(Section):
    """`buffer`."""

    batch_size: Count = 1
    """Tasks of one explore step."""
    train_batch_size: Natural = 0
    """Experiences of one training step; 0 = batch_size * repeat_times."""
    total_epochs: Count = 1
    total_steps: Count | None = None
    """The number of steps, which wins over total_epochs."""
    explorer_input: ExplorerInput = section(ExplorerInput)
    trainer_input: TrainerInput = section(TrainerInput)
