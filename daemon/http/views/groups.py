"""The closed groups of an experiment, a task each: its row, its rollouts, their mean reward."""

from __future__ import annotations

from typing import Literal

import msgspec

from rftd.daemon.http.views.route import After, Cursor, Daemon, Int, Limit, Name, read
from rftd.storage.queries.group_pages import GroupRow, list_groups


class GroupList(msgspec.Struct, frozen=True, kw_only=True):
    """Some tasks with their closed groups, in the requested order."""

    items: list[GroupRow]
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
