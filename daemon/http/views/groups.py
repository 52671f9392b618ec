"""The groups of an experiment, a task each: row, rollouts and mean reward of closed ones; prompts of any."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.route import After, Cursor, Daemon, Int, Limit, Name, read
from rftd.storage.queries.group_pages import GroupRow, list_groups, tasks_of

MOST_PROMPTS: Final = 128
"""Maximum number of groups of one request for prompts."""
Groups = Annotated[list[UUID], Meta(max_length=MOST_PROMPTS, description="The groups, repeated.")]
"""Ids of groups in a request."""
PromptChars = Annotated[int, Meta(ge=1, le=2000, description="Maximum characters of one prompt.")]
"""Maximum number of characters of one prompt in an answer."""


class GroupList(msgspec.Struct, frozen=True, kw_only=True):
    """Some tasks with their closed groups, in the requested order."""

    items: list[GroupRow]
    """The groups on this page, in the requested order."""
    next: str | None
    """`cursor` of the next page; null at the end."""


@read("/v1/experiments/{name}/groups", GroupList, tag="experiences", name="groups")
async def groups(
    daemon: Daemon,
    name: Name,
    stage: Int = None,
    order: Literal["newest", "oldest"] = "newest",
    limit: Limit = 50,
    cursor: Cursor = None,
    after: After = None,
) -> GroupList:
    """The tasks of an experiment with a closed group, by their number: row, rollouts, failures, mean reward."""
    id = await daemon.find(name, after)
    async with daemon.read() as connection:
        page = await list_groups(connection, id, stage=stage, order=order, limit=limit, cursor=cursor)
    return GroupList(items=page.items, next=page.next)


class GroupPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a group: its row, and the beginning of the last message of the row's conversation."""

    group: str
    """Id of the group whose task this is."""
    row: int
    """The row number over all tasksets of the stage."""
    epoch: int
    """Epoch of the dataset in which the row was drawn."""
    prompt: str
    """Empty if the row cannot be read."""
    truth: str | None
    """Reference answer of the row, cut as the prompt is; null without one."""


class PromptList(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of the requested groups, in the same order; unknown groups are left out."""

    items: list[GroupPrompt]
    """The tasks of the requested groups, in the order of the request."""
    notes: list[str]
    """Reasons for missing prompts."""


@read("/v1/experiments/{name}/prompts", PromptList, tag="experiences", name="prompts")
async def prompts(
    daemon: Daemon, name: Name, group: Groups, chars: PromptChars = 200, after: After = None
) -> PromptList:
    """The beginning of the question behind each group, with its right answer."""
    from rftd.daemon.text.transcript import TextTools, task_of_rollout

    id = await daemon.find(name, after)
    async with daemon.read() as connection:
        rows = {row.group: row for row in await tasks_of(connection, id, group)}
    tools = TextTools(daemon.log, daemon.texts, await daemon.operations.text_origin(id))
    prompts: list[GroupPrompt] = []
    notes: dict[str, None] = {}
    for row in (rows[str(group_id)] for group_id in group if str(group_id) in rows):
        task, note = await task_of_rollout(tools, row.stage, row)
        if note:
            notes[note] = None
        text = "" if task is None or not task.messages else task.messages[-1].content
        truth = None if task is None or not task.truth else task.truth[:chars]
        prompts.append(GroupPrompt(group=row.group, row=row.row, epoch=row.epoch, prompt=text[:chars], truth=truth))
    return PromptList(items=prompts, notes=list(notes)[:5])
