"""Rollouts as text: one experience, a group side by side, a dataset row through weight versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.experiences import AuxiliaryTurnView, ExperienceId, SpanView, auxiliary_views, span_views
from rftd.daemon.http.views.route import After, Daemon, Int, Name, Offset, Step, read
from rftd.daemon.text.passages import PartWriter, writer_of
from rftd.ops import limits
from rftd.ops.errors import NotFoundError
from rftd.storage.queries.experiences import ExperienceRow, TaskRow, find_experience, get_experience, task_of
from rftd.storage.queries.rollout_rows import (
    FailedRollout,
    failed_of_group,
    find_group,
    rollouts_of_group,
    rollouts_of_row,
)

if TYPE_CHECKING:
    from rftd.daemon.text.transcript import DecodedTurn, ReadRollout, TextTools
    from rftd.workers.datasets.task import Task

_FAILED: Final = 64
"""Maximum number of failed rollouts shown for a group."""
Chars = Annotated[
    int, Meta(ge=1, le=10_000_000, description="Maximum characters of one text; longer ones are cut, with a note.")
]
"""Maximum number of characters of one text in an answer."""
Rollouts = Annotated[int, Meta(ge=1, le=64)]
"""Number of rollouts on a page, from 1 to 64."""
GroupId = Annotated[
    str,
    Meta(max_length=100, description="Its id, or 8 or more digits with which only this id of the experiment begins."),
]
"""Id of a group in a request, or a beginning of the id with 8 or more digits."""


class MessageText(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the row's conversation."""

    role: str
    """Author of the message, such as `user` or `assistant`."""
    content: str
    """Text of the message, cut at the requested length."""
    extra: str = ""
    """Other keys for templates (`tool_calls`, `name`, ...), as a JSON object; empty without any."""


class TextPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an answer, with its writer: response tokens [start, end), counted from the rollout's first one."""

    by: PartWriter
    """`model` for drawn tokens; `tool` for other tokens with the marks of a tool's answer, else `workflow`."""
    text: str
    """Text of the part."""
    start: int
    """Index of the first token of the part."""
    end: int
    """Index behind the last token of the part."""


class TextTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and its answer as text."""

    prompt: str
    """The prompt as seen by the model, with the marks of the chat template."""
    bare_prompt: str
    """The prompt without these marks."""
    answer: str
    """The whole answer, without its end mark."""
    chars: int
    """Length of the whole answer in characters."""
    parts: list[TextPart]
    """The answer in parts by writer, with all marks; one part if the model drew the whole answer."""


class IdTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt and its answer as token ids, in place of a text."""

    prompt: list[int]
    """Token ids of the prompt."""
    answer: list[int]
    """Token ids of the answer."""


class RolloutText(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout as text, with its reward and the weight versions behind its tokens."""

    experience: ExperienceRow
    """Reward, versions and lengths of the rollout."""
    turns: list[TextTurn]
    """One turn, or one for each step of a rollout in several steps; empty without a text."""
    ids: list[IdTurn]
    """The turns as token ids, if there is no text."""
    spans: list[SpanView]
    """Weight versions behind the response tokens."""
    auxiliary: list[AuxiliaryTurnView]
    """Answers of auxiliary models, such as a judge's."""
    extracted: str | None
    """The answer read by the reward, to be compared with the truth; null without a note."""
    notes: list[str]
    """Reasons for missing parts."""


class ExperienceText(msgspec.Struct, frozen=True, kw_only=True):
    """One experience as text, with the task's messages and right answer."""

    task: TaskRow | None
    """Number, row and epoch of the task; null if the tables have no lease of the task."""
    messages: list[MessageText]
    """The row's conversation; empty if the row cannot be read."""
    truth: str | None
    """The right answer in the row; null if it has none, or cannot be read."""
    rollout: RolloutText
    """The rollout as text."""
    notes: list[str]
    """Reasons for missing parts."""


class GroupText(msgspec.Struct, frozen=True, kw_only=True):
    """The rollouts of one group as texts, side by side."""

    group: str
    """Id of the group."""
    task: TaskRow | None
    """Number, row and epoch of the task; null if the tables have no lease of the task."""
    messages: list[MessageText]
    """The row's conversation; empty if the row cannot be read."""
    truth: str | None
    """Reference answer of the row; null if the row has none or cannot be read."""
    items: list[RolloutText]
    """The experiences, by rollout."""
    failed: list[FailedRollout]
    """The first failed rollouts."""
    next: int | None
    """`first` of the next page; null at the end."""
    notes: list[str]
    """Reasons for missing parts."""


class RowText(msgspec.Struct, frozen=True, kw_only=True):
    """The rollouts of one dataset row as texts, by weight version."""

    row: int
    """The row number over all tasksets of its stage."""
    messages: list[MessageText]
    """The row's conversation; empty if the row cannot be read."""
    truth: str | None
    """Reference answer of the row; null if the row has none or cannot be read."""
    items: list[RolloutText]
    """The experiences, by their oldest weight version."""
    next: int | None
    """`offset` of the next page; null at the end."""
    notes: list[str]
    """Reasons for missing parts."""


@read("/v1/experiments/{name}/experiences/{experience}/text", ExperienceText, tag="experiences", name="experience_text")
async def experience_text(
    daemon: Daemon, name: Name, experience: ExperienceId, chars: Chars = limits.TEXT_CHARS, after: After = None
) -> ExperienceText:
    """One experience as text: messages, prompt, answer in parts by writer, truth, and the reasons for missing parts."""
    id = await daemon.find(name, after)
    async with daemon.read() as connection:
        row = await get_experience(connection, await find_experience(connection, id, experience))
        task_row = await task_of(connection, UUID(row.group))
    tools = await _tools(daemon, id)
    [rollout] = await _texts(tools, [row], chars)
    task, note = await _task(tools, row.stage, task_row)
    return ExperienceText(
        task=task_row,
        messages=_messages(task, chars),
        truth=_truth(task, chars),
        rollout=rollout,
        notes=[note] if note else [],
    )


@read("/v1/experiments/{name}/groups/{group}/text", GroupText, tag="experiences", name="group_text")
async def group_text(
    daemon: Daemon,
    name: Name,
    group: GroupId,
    first: Offset = 0,
    limit: Rollouts = 16,
    chars: Chars = limits.TEXT_CHARS,
    after: After = None,
) -> GroupText:
    """The rollouts of one group as texts, from rollout `first` on, and its failed rollouts."""
    id = await daemon.find(name, after)
    async with daemon.read() as connection:
        group_id = await find_group(connection, id, group)
        rows = await rollouts_of_group(connection, group_id, first=first, limit=limit + 1)
        failed = await failed_of_group(connection, group_id, limit=_FAILED)
        task_row = await task_of(connection, group_id)
    tools = await _tools(daemon, id)
    task, note = await _task(tools, rows[0].stage, task_row) if rows else (None, "")
    return GroupText(
        group=str(group_id),
        task=task_row,
        messages=_messages(task, chars),
        truth=_truth(task, chars),
        items=await _texts(tools, rows[:limit], chars),
        failed=failed,
        next=rows[limit].rollout if len(rows) > limit else None,
        notes=[note] if note else [],
    )


@read("/v1/experiments/{name}/rows/{row}/text", RowText, tag="experiences", name="row_text")
async def row_text(
    daemon: Daemon,
    name: Name,
    row: Step,
    stage: Int = None,
    limit: Rollouts = 16,
    offset: Offset = 0,
    chars: Chars = limits.TEXT_CHARS,
    after: After = None,
) -> RowText:
    """The rollouts of one dataset row as texts, by weight version; rows count over all tasksets of a stage."""
    id = await daemon.find(name, after)
    async with daemon.read() as connection:
        rows = await rollouts_of_row(connection, id, row, stage=stage, limit=limit + 1, offset=offset)
        task_row = await task_of(connection, UUID(rows[0].group)) if rows else None
    if not rows and not offset:
        raise NotFoundError(f"no experience of row {row}", field="row", fix="rows count from 0")
    tools = await _tools(daemon, id)
    task, note = await _task(tools, rows[0].stage, task_row) if rows else (None, "")
    return RowText(
        row=row,
        messages=_messages(task, chars),
        truth=_truth(task, chars),
        items=await _texts(tools, rows[:limit], chars),
        next=offset + limit if len(rows) > limit else None,
        notes=[note] if note else [],
    )


async def _tools(daemon: Daemon, experiment: UUID) -> TextTools:
    """Returns the tools for texts of an experiment: log, tokenizers, and the origin of tasks and templates."""
    from rftd.daemon.text.transcript import TextTools

    return TextTools(daemon.log, daemon.texts, await daemon.operations.text_origin(experiment))


async def _task(tools: TextTools, stage: int, task_row: TaskRow | None) -> tuple[Task | None, str]:
    """Reads the task of a rollout from its taskset, with a note if missing."""
    from rftd.daemon.text.transcript import task_of_rollout

    return await task_of_rollout(tools, stage, task_row)


def _messages(task: Task | None, chars: int) -> list[MessageText]:
    """Returns the messages of a task, each text cut after `chars` characters; empty without a task."""
    messages = () if task is None else task.messages
    return [
        MessageText(role=message.role[:chars], content=message.content[:chars], extra=message.extra[:chars])
        for message in messages
    ]


def _truth(task: Task | None, chars: int) -> str | None:
    """Returns the reference answer of a task, cut after `chars` characters; None without one."""
    return task.truth[:chars] if task is not None and task.truth else None


async def _texts(tools: TextTools, rows: Sequence[ExperienceRow], chars: int) -> list[RolloutText]:
    """Returns the texts of experiences in order; those of one stage are decoded together."""
    from rftd.daemon.text.transcript import decoded, rollout_of

    rollouts = [await rollout_of(tools, row) for row in rows]
    texts: dict[str, RolloutText] = {}
    for stage in sorted({row.stage for row in rows}):
        of_stage = [rollout for rollout in rollouts if rollout.row.stage == stage]
        answer = await decoded(tools, stage, of_stage, chars=chars)
        for rollout in of_stage:
            texts[rollout.row.id] = _text(rollout, answer.turns.get(rollout.row.id, ()), answer.notes, chars)
    return [texts[row.id] for row in rows]


def _text(rollout: ReadRollout, turns: Sequence[DecodedTurn], notes: Sequence[str], chars: int) -> RolloutText:
    """Returns a rollout as decoded turns; as token ids if the tokenizer is missing, with the reasons in the notes."""
    event = rollout.event
    views = [
        TextTurn(
            prompt=turn.prompt.text,
            bare_prompt=turn.bare_prompt.text,
            answer=turn.answer.text,
            chars=turn.answer.chars,
            parts=[
                TextPart(
                    by=writer_of(part.text, by_model=span.by_model), text=part.text, start=span.start, end=span.end
                )
                for span, part in zip(ids.parts, turn.parts, strict=False)
            ],
        )
        for ids, turn in zip(rollout.turns, turns, strict=False)
    ]
    all_notes = [*rollout.notes, *(notes if rollout.turns else ())]
    lengths = [text.chars for turn in turns for text in (turn.prompt, turn.answer, *turn.parts)]
    if max(lengths, default=0) > chars:
        all_notes.append(f"texts are cut after {chars} characters, of up to {max(lengths)}: see `chars`")
    ids = [] if views else rollout.turns
    return RolloutText(
        experience=rollout.row,
        turns=views,
        ids=[IdTurn(prompt=turn.prompt.tolist(), answer=turn.answer.tolist()) for turn in ids],
        spans=[] if event is None else span_views(event.spans),
        auxiliary=[] if event is None else auxiliary_views(event.auxiliary),
        extracted=None if event is None else event.extracted,
        notes=all_notes,
    )
