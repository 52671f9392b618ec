"""Section `buffer`: tasks to explore, data to train on, and the amounts of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from rftd.daemon.config.schema.name_grammar import Label
from rftd.daemon.config.schema.section import (
    Args,
    Count,
    LocalPath,
    Natural,
    Seconds,
    Section,
    Seed,
    Source,
    Steps,
    Tokens,
    checked,
    declared,
    harmless,
    refused,
    section,
    word,
)
from rftd.streams.spec.declaration import ARGUMENTS, PATH_PART, PLAIN, PLUGIN, InUnit, Upstream
from rftd.streams.spec.sections import Format
from rftd.workers.generation.sampling import HIGHEST_BIAS, HIGHEST_PENALTY

_EPOCHS = "epochs are counted over all data together"
"""Reason for refusing a dataset's own number of epochs."""
_TOTAL_EPOCHS_FIX = "write buffer.total_epochs"
"""Advice for the number of epochs."""


if not TYPE_CHECKING:
    # A section with the attributes of the declaration.
    Format = declared(Format)


TokenId = Annotated[Natural, BeforeValidator(lambda key: int(key) if isinstance(key, str) and key.isdecimal() else key)]
"""A token's id as a key: an int, or the text of an int, because keys of JSON are always text."""


def _raw(setting: Any) -> Any:
    """Reads null and vLLM's number of likeliest tokens as `raw`: the log-probability of each sampled token is always
    recorded.
    """
    return "raw" if setting is None or (type(setting) is int and setting >= 0) else setting


Logprobs = Annotated[Literal["raw", "processed"], word(), BeforeValidator(_raw)]
"""Kind of the recorded log-probabilities: raw, or after processing."""


class RolloutArgs(Section):
    """`rollout_args`; unset fields come from `model`."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """Sampling temperature; 0 (greedy) is allowed only for held-out tasksets; none: `model.temperature`."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sample from the most likely tokens with this total probability; none: `model.top_p`."""
    top_k: Annotated[
        Annotated[int, Field(ge=-1)] | None, Upstream("Trinity-RFT's default is -1, regardless of `model`.")
    ] = None
    """Sample from this many of the most likely tokens; -1: from all; none: `model.top_k`."""
    logprobs: Annotated[Logprobs, Upstream("The number of likeliest tokens to return.")] = "raw"
    """`processed`: also record the log-probability after penalties and truncation."""
    max_tokens: Tokens | None = None
    """Maximum number of tokens of a response; none: `model.max_response_tokens`."""
    min_tokens: Annotated[Natural, InUnit("tokens")] | None = None
    """Minimum number of tokens of a response; none: `model.min_response_tokens`."""
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], PLAIN] = []
    """Stop sequences."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Exclude tokens below this fraction of the most likely token's probability; 0: none."""
    repetition_penalty: Annotated[float, Field(gt=0, le=HIGHEST_PENALTY)] | None = None
    """Values above 1 make tokens already in the text less likely; none: `model.repetition_penalty`."""
    presence_penalty: Annotated[float, Field(ge=-HIGHEST_PENALTY, le=HIGHEST_PENALTY)] = 0.0
    """Subtracted from the logits of tokens already in the response."""
    logit_bias: Annotated[dict[TokenId, Annotated[float, Field(ge=-HIGHEST_BIAS, le=HIGHEST_BIAS)]], PLAIN] = {}
    """Added to the logit of a token, by token id."""
    ignore_eos: bool = False
    """true: responses continue after the end-of-sequence token, to the full length."""
    n: Count = harmless(1, why="repeat_times sets the number of rollouts per task")


class DataSelector(Section):
    """`data_selector`: the order of tasks."""

    selector_type: Annotated[str, PLUGIN] = "sequential"
    """`sequential`, `shuffle` (a new order for each epoch), `random`, `offline_easy2hard`, `difficulty_based`, or the
    name of a plug-in."""
    seed: Seed = 42
    """Seed of `shuffle`, `random` and other random selectors."""
    feature_keys: Annotated[list[str], PLAIN] = []
    """Numeric columns used to select rows: one or more for `offline_easy2hard`, two for `difficulty_based`."""
    kwargs: Annotated[Args, ARGUMENTS] = {}
    """Arguments of the selector."""


class Taskset(Section):
    """A dataset of tasks: one taskset to explore, or one to evaluate."""

    name: Label = ""
    """Name of the taskset in events and metrics; empty: named after its position."""
    storage_type: Annotated[Literal["file", "queue", "sql"], word()] = "file"
    """`queue`: tasks are added while the experiment runs, by `rftd tasks add`, HTTP or Kafka. `sql`: rows of table
    `name` in the database at `path`, read at submission."""
    path: Annotated[Source, LocalPath()] = None
    """A file of rows (`.jsonl`, `.json`, `.csv`, `.parquet`, `.arrow`), a glob pattern, a folder, a list of these, or
    the address of an environment (`gymnasium://FrozenLake-v1`). Required except for a queue; checked after stages have
    been merged over the global sections."""
    subset_name: Annotated[str | None, PATH_PART] = None
    """Subset of a folder: named in the folder's README.md, or a subfolder that is searched first; none: `path`
    itself."""
    split: Annotated[str, PATH_PART] = "train"
    """Split of a folder: the name of a file, of its numbered parts, or of a subfolder."""
    format: Format = section(Format)
    rollout_args: RolloutArgs = section(RolloutArgs)
    workflow_args: Annotated[Args, LocalPath("agent_folder", "environment_folder", "path"), ARGUMENTS] = {}
    """Arguments of the workflow."""
    reward_fn_args: Annotated[Args, LocalPath("path"), ARGUMENTS] = {}
    """Arguments of the reward."""
    default_workflow_type: Annotated[str | None, PLUGIN] = None
    """Workflow of rows that name none; none: the workflow of `explorer_input`."""
    default_reward_fn_type: Annotated[str | None, PLUGIN] = None
    """Reward of rows that name none; none: the reward of `explorer_input`, or the workflow's own."""
    data_selector: DataSelector = section(DataSelector)
    algorithm_type: Annotated[str | None, word(), PLUGIN] = None
    """rftd only: algorithm of the groups of this taskset, for their advantages; its policy loss and needs must be those
    of `algorithm`. None: `algorithm`."""
    advantage_fn_args: Annotated[Args | None, ARGUMENTS] = None
    """rftd only: arguments of the advantage function of `algorithm_type`, merged over its defaults."""
    repeat_times: Annotated[Count | None, Upstream("Trinity-RFT's default is 1, with the same effect.")] = None
    """Answers per held-out row, for metrics such as pass@k; none: 1. Training tasks use `algorithm.repeat_times`."""
    total_epochs: Count | None = refused(None, why=_EPOCHS, fix=_TOTAL_EPOCHS_FIX, same_as="buffer.total_epochs")
    max_retry_times: Annotated[Natural, Upstream("Counts attempts to read the storage.")] = 3
    """Maximum number of new leases of a rollout after its explorer reported no progress."""
    max_retry_interval: Seconds = harmless(1.0)
    enable_progress_bar: bool = harmless(False, why="rftd watch shows the progress")
    limit_rows: Count | None = None
    """rftd only: maximum number of rows, from the beginning."""


class ReplayBuffer(Section):
    """`replay_buffer`: priorities and reuse of experiences."""

    enable: bool = False
    """true: experiences with the highest priority are trained first; a full buffer retires those with the lowest."""
    priority_fn: Annotated[str, PLUGIN] = "linear_decay"
    """Priority of experiences: `linear_decay` (newer weights first, lower after each use), `decay_limit_randomization`,
    `tag`, or the name of a plug-in."""
    reuse_cooldown_time: Annotated[float, Field(ge=0), InUnit("s")] | None = None
    """Time until a trained experience may be trained again; none: experiences are trained once."""
    priority_fn_args: Annotated[Args, ARGUMENTS] = {"decay": 2.0}
    """Arguments of `priority_fn`, merged over its defaults."""


class ExperienceBuffer(Section):
    """`buffer.trainer_input.experience_buffer`: where the trainer's experiences or rows come from."""

    name: Label = ""
    """Name of a dataset of rows."""
    storage_type: Annotated[Literal["queue", "sql", "file"], word()] = checked(
        "queue",
        why="experiences are stored in the log; rows and recorded rollouts are read from files, or with sql from the "
        "table `name`",
    )
    path: Annotated[Source, LocalPath(), Upstream("A queue may have its backup here.")] = None
    """Dataset of a stage that trains on rows: files, glob patterns or folders, as for tasks."""
    capacity: Annotated[Count, Upstream("Counts entries, for example groups.")] = 10000
    """Maximum number of experiences that are waiting or cooling; when full, exploration pauses or (replay) the lowest
    priority is retired."""
    max_read_timeout: Annotated[Seconds, Upstream("Trinity-RFT 0.6 drops the incomplete batch.")] = 1800.0
    """Time after which an incomplete batch is trained."""
    replay_buffer: ReplayBuffer = section(ReplayBuffer)
    total_epochs: Count | None = refused(None, why=_EPOCHS, fix=_TOTAL_EPOCHS_FIX, same_as="buffer.total_epochs")
    split: Annotated[str, PATH_PART] = "train"
    """Split of a folder: the name of a file, of its numbered parts, or of a subfolder."""
    subset_name: Annotated[str | None, PATH_PART] = None
    """Subset of a folder: named in the folder's README.md, or a subfolder that is searched first; none: `path`
    itself."""
    format: Format = section(Format)
    schema_type: Annotated[Literal["auto", "experience", "sft", "dpo", "kto", "cpt"], word()] = "auto"
    """Kind of a dataset's rows. Determined by the algorithm and only checked here; kto accepts two kinds, and an
    auxiliary buffer also `experience`: recorded rollouts with their own tokens, log-probabilities and rewards."""
    max_retry_times: Natural = harmless(3)
    max_retry_interval: Seconds = harmless(1.0)
    enable_progress_bar: bool = harmless(False, why="rftd watch shows the progress")
    limit_rows: Count | None = None
    """rftd only: maximum number of rows of a dataset, from the beginning."""


class AuxiliaryBuffer(ExperienceBuffer):
    """An entry of `buffer.trainer_input.auxiliary_buffers`: rows trained in addition to experiences."""

    total_epochs: Annotated[Count | None, Upstream("Trinity-RFT's default is 1.")] = None
    """Number of passes over the rows, after which the stage ends; none: as many as the steps need."""


class ExplorerInput(Section):
    """`buffer.explorer_input`: the tasks to explore and to evaluate."""

    taskset: Taskset | None = None
    tasksets: list[Taskset] = []
    """Replaces `taskset`: each epoch contains every row of each taskset once, interleaved in an order drawn per
    epoch."""
    eval_tasksets: list[Taskset] = []
    default_workflow_type: Annotated[str | None, PLUGIN] = None
    """Workflow of tasksets that name none; none: `math_workflow`, with a warning."""
    default_eval_workflow_type: Annotated[str | None, PLUGIN] = None
    """Workflow of held-out tasksets that name none; none: `default_workflow_type`."""
    default_reward_fn_type: Annotated[str | None, PLUGIN] = None
    """Reward of tasksets that name none; none: the workflow's own."""
    system_prompt: Annotated[str | None, Upstream("Used in Trinity-RFT's files of 2025."), PLAIN] = None
    """System prompt of tasksets whose `format` has none."""
    reply_prefix: Annotated[str | None, Upstream("Used in Trinity-RFT's files of 2025."), PLAIN] = None
    """Prefix of every response for tasksets whose `format` has none."""


class TrainerInput(Section):
    """`buffer.trainer_input`: the data to train on."""

    experience_buffer: ExperienceBuffer = section(ExperienceBuffer)
    auxiliary_buffers: dict[str, AuxiliaryBuffer] = {}
    """Datasets by name, for `sample_strategy: mix`."""


class Buffer(Section):
    """`buffer`: tasks to explore, data to train on, and the amounts of both."""

    batch_size: Count = 1
    """Tasks per explore step."""
    train_batch_size: Natural = 0
    """Experiences, or rows of a dataset, per training step; 0 = batch_size * repeat_times (required for rows)."""
    total_epochs: Count = 1
    """Number of passes over the tasks or rows, if `total_steps` is not set."""
    total_steps: Steps | None = None
    """Number of steps; takes precedence over total_epochs."""
    explorer_input: ExplorerInput = section(ExplorerInput)
    trainer_input: TrainerInput = section(TrainerInput)
