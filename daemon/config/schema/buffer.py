"""Section `buffer`: the tasks that are explored, the data that are trained on, and their amounts."""

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
from rftd.streams.spec.row_format import Format
from rftd.workers.generation.sampling import HIGHEST_BIAS, HIGHEST_PENALTY

_EPOCHS = "the epochs of all data are counted together"
_AS_ALL = "write buffer.total_epochs"


if not TYPE_CHECKING:
    # A section, which has the attributes of its declaration.
    Format = declared(Format)


TokenId = Annotated[Natural, BeforeValidator(lambda key: int(key) if isinstance(key, str) and key.isdecimal() else key)]
"""A token's id as a key: an int, or the text of one, for JSON has text keys only."""


def _raw(value: Any) -> Any:
    """`raw` for nothing, and for vLLM's number of likeliest tokens: that of each drawn token is always kept."""
    return "raw" if value is None or (type(value) is int and value >= 0) else value


Logprobs = Annotated[Literal["raw", "processed"], word(), BeforeValidator(_raw)]


class RolloutArgs(Section):
    """`rollout_args`; what is not given comes from `model`."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """The temperature of sampling; 0, greedy, is for held-out tasksets. None: `model.temperature`."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sample from the most likely tokens that together have this probability; none: `model.top_p`."""
    top_k: Annotated[
        Annotated[int, Field(ge=-1)] | None, Upstream("Trinity-RFT's default is -1, whatever `model` says.")
    ] = None
    """Sample from this many of the most likely tokens, -1: from all; none: `model.top_k`."""
    logprobs: Annotated[Logprobs, Upstream("It is a number of likeliest tokens.")] = "raw"
    """`processed`: also record the log-probability after penalties and truncation."""
    max_tokens: Tokens | None = None
    """Maximum number of tokens of a response; none: `model.max_response_tokens`."""
    min_tokens: Annotated[Natural, InUnit("tokens")] | None = None
    """Minimum number of tokens of a response; none: `model.min_response_tokens`."""
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], PLAIN] = []
    """Texts at which a response ends."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Exclude tokens below this fraction of the most likely token's probability; 0: none."""
    repetition_penalty: Annotated[float, Field(gt=0, le=HIGHEST_PENALTY)] | None = None
    """Above 1, tokens that are in the text already become less likely; none: `model.repetition_penalty`."""
    presence_penalty: Annotated[float, Field(ge=-HIGHEST_PENALTY, le=HIGHEST_PENALTY)] = 0.0
    """The amount that logits of tokens lose which are in the response already."""
    logit_bias: Annotated[dict[TokenId, Annotated[float, Field(ge=-HIGHEST_BIAS, le=HIGHEST_BIAS)]], PLAIN] = {}
    """The amount that is added to the logit of a token, by its id."""
    ignore_eos: bool = False
    """True: a response continues after its end-of-sequence token, to its full length."""
    n: Count = harmless(1, why="repeat_times says how often a task is tried")


class DataSelector(Section):
    """`data_selector`: the order in which tasks are taken."""

    selector_type: Annotated[str, PLUGIN] = "sequential"
    """`sequential`, `shuffle` (a new order for each epoch), `random`, `offline_easy2hard`, `difficulty_based`, or the
    name of one of your own."""
    seed: Seed = 42
    """The seed of `shuffle`, `random` and what draws rows."""
    feature_keys: Annotated[list[str], PLAIN] = []
    """The columns of numbers by which rows are drawn: `offline_easy2hard` one or more, `difficulty_based` two."""
    kwargs: Annotated[Args, ARGUMENTS] = {}
    """Arguments of the selector."""


class Taskset(Section):
    """A dataset of tasks."""

    name: Label = ""
    """The name of the taskset in events and metrics; empty: one by its place."""
    storage_type: Annotated[Literal["file", "queue", "sql"], word()] = "file"
    """`queue`: tasks are added while the experiment runs, by `rftd tasks add`, HTTP or Kafka. `sql`: the rows that the
    table `name` of the database at `path` has when the experiment is submitted."""
    path: Annotated[Source, LocalPath()] = None
    """A file of rows (`.jsonl`, `.json`, `.csv`, `.parquet`, `.arrow`), a pattern of such files, a folder with them, or
    a list of these. Required but for a queue; checked once stages are laid over the global sections."""
    subset_name: Annotated[str | None, PATH_PART] = None
    """The subset of a folder: one that its README.md names, or the folder that is looked in first; none: `path`."""
    split: Annotated[str, PATH_PART] = "train"
    """The split of a folder: the name of a file, of its numbered parts or of a folder."""
    format: Format = section(Format)
    rollout_args: RolloutArgs = section(RolloutArgs)
    workflow_args: Annotated[Args, ARGUMENTS] = {}
    """Arguments of the workflow."""
    reward_fn_args: Annotated[Args, LocalPath("path"), ARGUMENTS] = {}
    """Arguments of the reward."""
    default_workflow_type: Annotated[str | None, PLUGIN] = None
    """The workflow of rows that name none; none: that of `explorer_input`."""
    default_reward_fn_type: Annotated[str | None, PLUGIN] = None
    """The reward of rows that name none; none: that of `explorer_input`, or the workflow's own."""
    data_selector: DataSelector = section(DataSelector)
    repeat_times: Annotated[Count | None, Upstream("Trinity-RFT's default is 1, to the same effect.")] = None
    """Answers to one held-out row, for pass@k and its like; none: 1. Training tasks have `algorithm.repeat_times`."""
    total_epochs: Count | None = refused(None, why=_EPOCHS, fix=_AS_ALL, same_as="buffer.total_epochs")
    max_retry_times: Annotated[Natural, Upstream("It counts attempts at reading the storage.")] = 3
    """The number of times that a rollout is leased again because its explorer reported no progress on it."""
    max_retry_interval: Seconds = harmless(1.0)
    enable_progress_bar: bool = harmless(False, why="rftd watch shows the progress")
    limit_rows: Count | None = None
    """rftd only: only the first rows."""


class ReplayBuffer(Section):
    """`replay_buffer`: priorities and reuse of experiences."""

    enable: bool = False
    """True: the experiences of highest priority are trained first, and the least are retired from a full buffer."""
    priority_fn: Annotated[str, PLUGIN] = "linear_decay"
    """The priority of experiences: `linear_decay` (new weights first, less with each use), `decay_limit_randomization`,
    `tag`, or one of a third party."""
    reuse_cooldown_time: Annotated[float, Field(ge=0), InUnit("s")] | None = None
    """The time for which a trained experience rests before it may be trained again; none: it is trained once."""
    priority_fn_args: Annotated[Args, ARGUMENTS] = {"decay": 2.0}
    """Arguments of `priority_fn`, merged over its defaults."""


class ExperienceBuffer(Section):
    """`buffer.trainer_input.experience_buffer`."""

    name: Label = ""
    """The name of a dataset of rows."""
    storage_type: Annotated[Literal["queue", "sql", "file"], word()] = checked(
        "queue",
        why="experiences are kept in the log; rows and recorded rollouts are read from files, or with sql from the "
        "table name",
    )
    path: Annotated[Source, LocalPath(), Upstream("A queue may be backed up there.")] = None
    """The dataset of a stage that trains on rows: files, patterns of files or folders, as for tasks."""
    capacity: Annotated[Count, Upstream("It counts what was put at once, such as a group.")] = 10000
    """Experiences that wait or rest at once: beyond it no more are explored, or the least are retired (replay)."""
    max_read_timeout: Annotated[Seconds, Upstream("Trinity-RFT 0.6 drops the incomplete batch.")] = 1800.0
    """The wait after which an incomplete batch is trained."""
    replay_buffer: ReplayBuffer = section(ReplayBuffer)
    total_epochs: Count | None = refused(None, why=_EPOCHS, fix=_AS_ALL, same_as="buffer.total_epochs")
    split: Annotated[str, PATH_PART] = "train"
    """The split of a folder: the name of a file, of its numbered parts or of a folder."""
    subset_name: Annotated[str | None, PATH_PART] = None
    """The subset of a folder: one that its README.md names, or the folder that is looked in first; none: `path`."""
    format: Format = section(Format)
    schema_type: Annotated[Literal["auto", "experience", "sft", "dpo", "kto", "cpt"], word()] = "auto"
    """The kind of a dataset's rows. The algorithm says it, so it is checked only; kto alone takes two kinds."""
    max_retry_times: Natural = harmless(3)
    max_retry_interval: Seconds = harmless(1.0)
    enable_progress_bar: bool = harmless(False, why="rftd watch shows the progress")
    limit_rows: Count | None = None
    """rftd only: only the first rows of a dataset."""


class AuxiliaryBuffer(ExperienceBuffer):
    """One of `buffer.trainer_input.auxiliary_buffers`."""

    total_epochs: Annotated[Count | None, Upstream("Trinity-RFT's default is 1.")] = None
    """The number of times that its rows are gone over: then the stage ends; none: as often as its steps need them."""


class ExplorerInput(Section):
    """`buffer.explorer_input`."""

    taskset: Taskset | None = None
    tasksets: list[Taskset] = []
    """In the place of `taskset`: an epoch holds every row of each once, in turns that are drawn for the epoch."""
    eval_tasksets: list[Taskset] = []
    default_workflow_type: Annotated[str | None, PLUGIN] = None
    """The workflow of tasksets that name none; without any it is `math_workflow`, with a warning."""
    default_eval_workflow_type: Annotated[str | None, PLUGIN] = None
    """The workflow of held-out tasksets that name none; none: `default_workflow_type`."""
    default_reward_fn_type: Annotated[str | None, PLUGIN] = None
    """The reward of tasksets that name none; none: the workflow's own."""
    system_prompt: Annotated[str | None, Upstream("It is a field of Trinity-RFT's files of 2025."), PLAIN] = None
    """The system prompt of tasksets whose `format` has none."""
    reply_prefix: Annotated[str | None, Upstream("It is a field of Trinity-RFT's files of 2025."), PLAIN] = None
    """The beginning of every response to tasksets whose `format` has none."""


class TrainerInput(Section):
    """`buffer.trainer_input`."""

    experience_buffer: ExperienceBuffer = section(ExperienceBuffer)
    auxiliary_buffers: dict[str, AuxiliaryBuffer] = {}
    """Datasets by name, for `sample_strategy: mix`."""


class Buffer(Section):
    """`buffer`."""

    batch_size: Count = 1
    """Tasks of one explore step."""
    train_batch_size: Natural = 0
    """Experiences, or rows of a dataset, in one training step; 0 = batch_size * repeat_times, and required for rows."""
    total_epochs: Count = 1
    """The number of times that tasks or rows are gone over, where `total_steps` is not given."""
    total_steps: Steps | None = None
    """The number of steps, which wins over total_epochs."""
    explorer_input: ExplorerInput = section(ExplorerInput)
    trainer_input: TrainerInput = section(TrainerInput)
