"""`Task`: one row of a taskset as the input of a workflow and its reward."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

import msgspec

from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.record import DatasetRecord


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation to be answered by the model, with the right answer and everything else in its row."""

    taskset: str
    """Name of the taskset."""
    row: int
    """Number of the row."""
    epoch: int
    """Pass over the rows, from 0."""
    prompt: str
    """The user's text; for a conversation, its last message."""
    messages: tuple[Message, ...]
    """Conversation to answer, without the system prompt of the experiment."""
    truth: str
    """Right answer, for the reward to compare with; empty if the row's `response_key` is empty or unset."""
    bare: bool = False
    """True for `prompt_type: raw`: `simple_workflow` then lets the model continue the bare text, without a chat
    template.
    """
    system_prompt: str | None = None
    """System prompt put before the messages; None without one."""
    reply_prefix: str | None = None
    """Beginning of the answer, given to the model; None without one."""
    workflow: str
    """Name of the workflow."""
    reward: str | None = None
    """Name of the reward; None for the workflow's default reward."""
    raw: dict[str, Any] = {}
    """The complete row, for workflows and rewards reading further columns."""

    @property
    def where(self) -> str:
        """Taskset and row, for error messages."""
        return f"taskset {self.taskset!r} row {self.row}"


class TaskSource(Hashable, Protocol):
    """Anything returning tasks by row number, such as a taskset or a queue; hashable, to group rollouts by source."""

    @property
    def digest(self) -> str:
        """Digest of the source's content: equal for readers of equal bytes; empty without a file."""
        ...

    def task(self, row: int, epoch: int = 0) -> Task:
        """Returns the task of a row. Raises DataError if the row is no task."""
        ...


def make_task(record: dict[str, Any], *, spec: TasksetSpec, row: int, epoch: int = 0) -> Task:
    """Converts a row to a task; `row` and `epoch` are its numbers.

    The prompt is the text (or list of messages) under `prompt_key`; without that column, the messages under
    `messages_key`, whose last one, if spoken by the assistant, is the truth. Raises DataError if a key is missing.
    """
    reader = DatasetRecord(record, spec, row)
    form = spec.format
    answer: str | None = None
    if not reader.names(form.prompt_key) and reader.names(form.messages_key):
        messages = reader.messages(form.messages_key)
        if messages[-1].role == "assistant" and len(messages) > 1:
            messages, answer = messages[:-1], messages[-1].content
    elif isinstance(reader.value(form.prompt_key), list):
        messages = reader.messages(form.prompt_key)
    elif isinstance(reader.value(form.prompt_key), dict):
        problem = f"has a mapping under {form.prompt_key!r}, where a text or a list of messages belongs"
        raise reader.error(problem, form.prompt_key)
    else:
        messages = (Message("user", reader.text(form.prompt_key)),)
    if form.response_key and (answer is None or reader.names(form.response_key)):
        answer = reader.text(form.response_key)
    return Task(
        taskset=spec.name,
        row=row,
        epoch=epoch,
        prompt=messages[-1].content,
        messages=messages,
        truth=answer or "",
        bare=form.prompt_type == "raw",
        system_prompt=reader.system_prompt(),
        reply_prefix=form.reply_prefix,
        workflow=reader.optional(form.workflow_key) or spec.workflow,
        reward=reader.optional(form.reward_fn_key) or spec.reward,
        raw=record,
    )
