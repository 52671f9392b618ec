"""One taskset, and the format of its rows."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rftd.daemon.config.schema.section import Args, Count, Natural, Seconds, Section, Seed, inert, section, word


class Format(Section):
    """`format`: which keys of a row hold what."""

    prompt_type: Annotated[Literal["messages", "plaintext"], word()] = "messages"
    prompt_key: str = "prompt"
    response_key: str = "response"
    system_prompt_key: str | None = None
    system_prompt: str | None = None
    messages_key: str = "message"
    tools_key: str = "tools"
    image_key: str | None = inert(None)
    video_key: str | None = inert(None)
    reply_prefix: str | None = None
    workflow_key: str = ""
    reward_fn_key: str = ""
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"
    enable_concatenated_multi_turn: bool = False
    """Of a conversation to imitate, learn every message of the assistant."""
    chat_template: str | None = None
    """Of rows to train on; tasks are asked in the model's."""
    enable_thinking: bool | None = None


class RolloutArgs(Section):
    """`rollout_args`; what is not given comes from `model`."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    logprobs: Natural | None = inert(None, why="the log-probability of each sampled token is always kept")
    max_tokens: Count | None = None
    min_tokens: Natural | None = None
    stop: list[str] = []
    n: Count = inert(1, why="repeat_times says how often a task is tried")


class DataSelector(Section):
    """`data_selector`: in which order tasks are taken."""

    selector_type: Annotated[
        Literal["sequential", "shuffle", "random", "offline_easy2hard", "difficulty_based"], word()
    ] = "sequential"
    seed: Seed = 42
    feature_keys: list[str] = inert([])
    kwargs: Args = inert({})


class Taskset(Section):
    """A dataset of tasks."""

    name: str = ""
    storage_type: Annotated[Literal["file", "queue", "sql"], word()] = "file"
    path: str = ""
    """Required; checked once stages are laid over the global sections."""
    subset_name: str | None = None
    split: str = "train"
    format: Format = section(Format)
    rollout_args: RolloutArgs = section(RolloutArgs)
    workflow_args: Args = {}
    reward_fn_args: Args = {}
    default_workflow_type: str | None = None
    default_reward_fn_type: str | None = None
    data_selector: DataSelector = section(DataSelector)
    repeat_times: Count | None = None
    max_retry_times: Natural = 3
    max_retry_interval: Seconds = inert(1.0)
    enable_progress_bar: bool = inert(False)
    limit_rows: Count | None = None
    """rftd's own: only the first rows."""
