"""Checks of a sample of a dataset's rows before its experiment is accepted: whether rows are tasks, or can be trained
on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from rftd.streams.spec.engines import SERVICE
from rftd.streams.spec.spec import StageSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.record import DatasetRecord
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.datasets.tokenizer import no_template
from rftd.workers.devices.device_memory import number_in, settings_of
from rftd.workers.models.model_folder import has_template, has_tokenizer
from rftd.workers.workflows.first_prompts import FirstPrompts
from rftd.workers.workflows.registry import WORKFLOWS, check_own_names, own_reward

_OF_TEXTS: Final = frozenset(
    ("math_reward", "math_boxed_reward", "math_verify_reward", "accuracy_reward", "exact_match_reward")
)
"""Built-in rewards comparing an answer with a text, which the JSON of a mapping or a list never equals."""
_SAMPLE_ROWS: Final = 10_000
"""Maximum number of rows checked, spread evenly over the dataset, in addition to the first of each file; a smaller
dataset is checked completely.
"""


class _Templateless(ByteTokenizer):
    """Stand-in for the tokenizer of a model without a chat template: conversations cannot be rendered."""

    def __init__(self, folder: str) -> None:
        """`folder` is the model's folder, named in errors."""
        self._folder = folder

    def chat_text(self, messages: Sequence[Message], *, generation_prompt: bool, tools: str = "") -> str:
        """Raises DataError: the model has no chat template."""
        raise no_template(self._folder, field="prompt_type")

    def marked_text(self, messages: Sequence[Message], *, tools: str = "") -> None:
        """Raises DataError: the model has no chat template."""
        raise no_template(self._folder, field="prompt_type")


def look_tokenizer(stage: StageSpec, *, chat_template: str | None = None) -> ByteTokenizer:
    """Returns a cheap stand-in for the stage's tokenizer: bytes as tokens, with a chat template only if the workers
    have one.

    Opening the real tokenizer would take seconds.
    """
    folder = Path(stage.model.path)
    is_local = stage.trainer.engine != "fake" and stage.rollout.engine != SERVICE
    # A missing tokenizer is reported by the model's checks.
    if (
        is_local
        and not (chat_template or stage.model.chat_template)
        and has_tokenizer(folder)
        and not has_template(folder)
    ):
        return _Templateless(stage.model.path)
    return ByteTokenizer()


def check_prompts(taskset: Taskset, stage: StageSpec) -> None:
    """Checks that a model without a chat template can be prompted with the first task of each file. Raises DataError.

    Does nothing for a stage whose model has a template, or needs none here. Third-party workflows are checked by their
    explorers.
    """
    tokenizer = look_tokenizer(stage)
    if not isinstance(tokenizer, _Templateless):
        return
    prompts = FirstPrompts(taskset.spec, stage.model, tokenizer)
    for row in taskset.first_rows:
        task = taskset.task(row)
        if WORKFLOWS.builtin(task.workflow):
            prompts.of(task)


def check_tasks(taskset: Taskset) -> None:
    """Checks that each sampled row is a task naming a known workflow and reward, with a truth the reward accepts.

    Raises DataError, with file, row and column.
    """
    names: set[tuple[str, str | None]] = set()
    for row in _sampled_rows(taskset):
        task = taskset.task(row)
        with taskset.placed(row):
            if (task.workflow, task.reward) not in names:
                check_own_names(task, taskset.spec)
                names.add((task.workflow, task.reward))
            _check_truth(task.raw, taskset.spec, row)


def check_categories(taskset: Taskset) -> None:
    """Checks that the first row of each file has a category, if a category column is configured. Raises DataError."""
    key = taskset.spec.format.category_key
    for row in taskset.first_rows if key else ():
        DatasetRecord(taskset.row(row), taskset.spec, row).text(key or "")


def check_train_rows(taskset: Taskset, tokenizer: ByteTokenizer) -> None:
    """Checks that each sampled row, of schema `kto` every row, can be trained on. Raises DataError, with file, row and
    column.
    """
    form = taskset.spec.format
    texts = () if form.prompt_type == "messages" else (form.prompt_key, form.response_key)
    structured: dict[str, bool] = {}
    # A label belongs to its row: of `kto` all rows are inspected.
    for row in range(len(taskset)) if taskset.spec.schema == "kto" else _sampled_rows(taskset):
        with taskset.placed(row):
            _check_kinds(DatasetRecord(taskset.row(row), taskset.spec, row), texts, structured)
        # Almost no room for tokens: only the columns are checked here, independently of the real tokenizer.
        taskset.train_rows(row, tokenizer=tokenizer, max_model_len=2)


def check_recorded(taskset: Taskset, stage: StageSpec) -> None:
    """Checks that sampled rows are rollouts recorded with the stage's model, and that rows of a group are adjacent.

    Raises DataError, with file and row.
    """
    vocabulary = number_in(settings_of(Path(stage.model.path)), "vocab_size") if stage.trainer.engine != "fake" else 0
    first_rows: dict[str | int, int] = {}
    last_group: str | int | None = None
    for row in _sampled_rows(taskset):
        rollout = taskset.recorded(row, max_model_len=stage.model.max_model_len)
        if vocabulary and (highest := max(rollout.tokens)) >= vocabulary:
            raise taskset.fault(row, f"has token {highest}, and the model has a vocabulary of {vocabulary}")
        if rollout.group != last_group and rollout.group in first_rows:
            fault = (
                f"has group {rollout.group!r} of row {first_rows[rollout.group]}, and rows of other groups lie between"
            )
            raise taskset.fault(row, fault)
        first_rows.setdefault(rollout.group, row)
        last_group = rollout.group


def _check_kinds(record: DatasetRecord, keys: Iterable[str], structured: dict[str, bool]) -> None:
    """Raises DataError for a row with a mapping or list under one of `keys` after rows with texts, or the reverse.

    `structured` carries the kind of each key's first cell from row to row, True for a mapping or list, and is filled
    here. A column of mappings is learned as JSON; one among texts is a mistake.
    """
    for key in keys:
        cell = record.value(key)
        if cell is None:
            continue
        is_structured = isinstance(cell, dict | list)
        if structured.setdefault(key, is_structured) != is_structured:
            kind = "mapping" if isinstance(cell, dict) else "list" if isinstance(cell, list) else "text"
            earlier_kind = "texts" if is_structured else "mappings or lists"
            raise record.error(f"has a {kind} under {key!r}, where rows before it have {earlier_kind}", key)


def _sampled_rows(taskset: Taskset) -> list[int]:
    """Returns the numbers of the rows to check, ascending."""
    looks = min(_SAMPLE_ROWS, len(taskset))
    spread = {number * len(taskset) // looks for number in range(looks)}
    return sorted({*taskset.first_rows, *spread})


def _check_truth(raw: dict[str, Any], spec: TasksetSpec, row: int) -> None:
    """Raises DataError for a row with a mapping or list as truth and a reward comparing texts.

    `raw` is the row as read; a workflow and a reward named there replace the taskset's. A row without a truth passes.
    """
    key = spec.format.response_key
    record = DatasetRecord(raw, spec, row)
    if not key or not record.has(key):
        return
    workflow = record.optional(spec.format.workflow_key) or spec.workflow
    reward = record.optional(spec.format.reward_fn_key) or spec.reward or own_reward(workflow)
    truth = record.value(key)
    if reward in _OF_TEXTS and isinstance(truth, dict | list):
        kind = "mapping" if isinstance(truth, dict) else "list"
        raise record.error(f"has a {kind} under {key!r}, where {reward} takes a text: name one within it", key)
