"""Section `buffer`: the tasks that are explored, the data that are trained on, and their amounts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rftd.daemon.config.schema.section import (
    Args,
    Count,
    InUnit,
    LocalPath,
    Natural,
    Seconds,
    Section,
    Seed,
    Steps,
    Tokens,
    Url,
    checked,
    harmless,
    refused,
    section,
    word,
)
from rftd.workers.rollout.sampling import HIGHEST_BIAS, HIGHEST_PENALTY

_TEXT = "models are asked with text alone"
_EPOCHS = "the epochs of all data are counted together"
_AS_ALL = "write buffer.total_epochs"
_PLACES = "sequential and shuffle go by the places of rows"


class Format(Section):
    """`format`: the keys of a row, by what they hold."""

    prompt_type: Annotated[Literal["messages", "plaintext"], word()] = "messages"
    prompt_key: str = "prompt"
    response_key: str = "response"
    system_prompt_key: str | None = None
    system_prompt: str | None = None
    messages_key: str = "message"
    tools_key: str = "tools"
    image_key: str | None = refused(None, why=_TEXT)
    video_key: str | None = refused(None, why=_TEXT)
    reply_prefix: str | None = None
    workflow_key: str = ""
    reward_fn_key: str = ""
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"
    completion_key: str = "completion"
    label_key: str = "label"
    enable_concatenated_multi_turn: bool = False
    """True: every message of the assistant in a conversation is imitated, not the last one alone."""
    chat_template: str | None = None
    """The template of rows to train on; tasks are asked in the model's."""
    enable_thinking: bool | None = None


TokenId = Annotated[Natural, BeforeValidator(lambda key: int(key) if isinstance(key, str) and key.isdecimal() else key)]
"""A token's id as a key: an int, or the text of one, for JSON has text keys only."""


def _raw(value: Any) -> Any:
    """`raw` for nothing, and for vLLM's number of likeliest tokens: that of each drawn token is always kept."""
    return "raw" if value is None or (type(value) is int and value >= 0) else value


Logprobs = Annotated[Literal["raw", "processed"], word(), BeforeValidator(_raw)]


class RolloutArgs(Section):
    """`rollout_args`; what is not given comes from `model`."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    logprobs: Logprobs = "raw"
    max_tokens: Tokens | None = None
    min_tokens: Annotated[Natural, InUnit("tokens")] | None = None
    stop: list[Annotated[str, Field(min_length=1)]] = []
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=HIGHEST_PENALTY)] | None = None
    presence_penalty: Annotated[float, Field(ge=-HIGHEST_PENALTY, le=HIGHEST_PENALTY)] = 0.0
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-HIGHEST_BIAS, le=HIGHEST_BIAS)]] = {}
    ignore_eos: bool = False
    n: Count = harmless(1, why="repeat_times says how often a task is tried")


class DataSelector(Section):
    """`data_selector`: the order in which tasks are taken."""

    selector_type: Annotated[
        Literal["sequential", "shuffle", "random", "offline_easy2hard", "difficulty_based"], word()
    ] = "sequential"
    seed: Seed = 42
    feature_keys: list[str] = harmless([], why=_PLACES)
    kwargs: Args = harmless({}, why=_PLACES)


class Taskset(Section):
    """A dataset of tasks."""

    name: str = ""
    storage_type: Annotated[Literal["file", "queue", "sql"], word()] = checked("file", why="tasks come from files")
    path: Annotated[str | None, LocalPath()] = None
    """Required; checked once stages are laid over the global sections."""
    subset_name: str | None = None
    split: str = "train"
    format: Format = section(Format)
    rollout_args: RolloutArgs = section(RolloutArgs)
    workflow_args: Args = {}
    reward_fn_args: Annotated[Args, LocalPath("path")] = {}
    default_workflow_type: str | None = None
    default_reward_fn_type: str | None = None
    data_selector: DataSelector = section(DataSelector)
    repeat_times: Count | None = None
    """For held-out tasksets; how often a training task is tried is `algorithm.repeat_times`."""
    total_epochs: Count | None = refused(None, why=_EPOCHS, fix=_AS_ALL, same_as="buffer.total_epochs")
    max_retry_times: Natural = 3
    max_retry_interval: Seconds = harmless(1.0)
    enable_progress_bar: bool = harmless(False, why="rftd watch shows the progress")
    limit_rows: Count | None = None
    """rftd's own: only the first rows."""


class ReplayBuffer(Section):
    """`replay_buffer`: priorities and reuse of experiences."""

    enable: bool = False
    priority_fn: str = "linear_decay"
    reuse_cooldown_time: Annotated[float, Field(ge=0), InUnit("s")] | None = None
    priority_fn_args: Args = {"decay": 2.0}


class ExperienceBuffer(Section):
    """`buffer.trainer_input.experience_buffer`, or one of `auxiliary_buffers`."""

    name: str = ""
    storage_type: Annotated[Literal["queue", "sql", "file"], word()] = checked(
        "queue", why="experiences are kept in the log, and rows are read from files"
    )
    path: Annotated[Url, LocalPath()] = None
    capacity: Count = 10000
    """Experiences that wait or rest at once: beyond it no more are explored, or the least are retired (replay)."""
    max_read_timeout: Seconds = 1800.0
    """After it an incomplete batch is trained, as the guide says; Trinity-RFT 0.6 drops it."""
    replay_buffer: ReplayBuffer = section(ReplayBuffer)
    total_epochs: Count | None = refused(None, why=_EPOCHS, fix=_AS_ALL, same_as="buffer.total_epochs")
    split: str = "train"
    subset_name: str | None = None
    format: Format = section(Format)
    schema_type: Annotated[Literal["auto", "experience", "sft", "dpo", "kto", "cpt"], word()] = "auto"
    """The kind of a dataset's rows. The algorithm says it, so it is checked only; kto alone takes two kinds."""
    max_retry_times: Natural = harmless(3)
    max_retry_interval: Seconds = harmless(1.0)
    enable_progress_bar: bool = harmless(False, why="rftd watch shows the progress")
    limit_rows: Count | None = None
    """rftd's own: only the first rows of a dataset."""


class ExplorerInput(Section):
    """`buffer.explorer_input`."""

    taskset: Taskset | None = None
    tasksets: list[Taskset] = []
    """In the place of `taskset`: an epoch holds every row of each once, in turns that are drawn for the epoch."""
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
    total_steps: Steps | None = None
    """The number of steps, which wins over total_epochs."""
    explorer_input: ExplorerInput = section(ExplorerInput)
    trainer_input: TrainerInput = section(TrainerInput)
