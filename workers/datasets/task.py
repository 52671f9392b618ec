"""`Task`: one row of a taskset, as a workflow and its reward see it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

import msgspec

from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.record import DatasetRecord


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task: the conversation to answer, and the right answer."""

    taskset: str
    row: int
    epoch: int
    prompt: str
    """The user's text; of a conversation, its last message."""
    messages: tuple[Message, ...]
    """The conversation to answer, without the system prompt of the experiment."""
    truth: str
    """The right answer, which the reward compares with; empty if `response_key` is."""
    bare: bool = False
    """True if `prompt_type` is `raw`: `simple_workflow` then completes the prompt as it stands."""
    system_prompt: str | None = None
    reply_prefix: str | None = None
    workflow: str
    reward: str | None = None
    """The name of the reward; None: the workflow's own."""
    raw: dict[str, Any] = {}
    """The whole row, for workflows and rewards with columns of their own."""

    @property
    def where(self) -> str:
        """The task's place, as errors name it."""
        return f"taskset {self.taskset!r} row {self.row}"


class TaskSource(Hashable, Protocol):
    """The tasks of rollouts, by their rows."""

    @property
    def digest(self) -> str:
        """What tells two readers whether they read the same bytes; empty where no file is read."""
        ...

    def task(self, row: int, epoch: int = 0) -> Task:
        """The task of a row. Raises DataError if it is none."""
        ...


def make_task(record: dict[str, Any], *, spec: TasksetSpec, row: int, epoch: int = 0) -> Task:
    """The task in a record.

    The prompt is the text (or list of messages) under `prompt_key`; without that column, the messages under
    `messages_key`, whose last one, if the assistant says it, is the truth. Raises DataError if a key is missing.
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
        what = f"has a mapping under {form.prompt_key!r}, where a text or a list of messages belongs"
        raise reader.error(what, form.prompt_key)
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
