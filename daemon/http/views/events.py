"""The events of an experiment, read from the log and not from the tables."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from rftd.daemon.http.views.event_page import EventPage
from rftd.daemon.http.views.route import Cursor, Daemon, Limit, Name, read
from rftd.ops.errors import UsageError
from rftd.storage.queries.cursor import CURSOR_CHARACTERS

# Shorter than the idle time-outs of common proxies, which would cut the connection without an answer.
MAX_WAIT_S: Final = 30.0
"""Maximum seconds of waiting for further events."""

TIDYING_NS: Final = 600 * 10**9
"""Time after the newest event in the tables for the last records: rollouts end, workers leave."""
MOST_NEWEST: Final = 10_000
"""Maximum number of events before the end at the start of a page."""


@read("/v1/experiments/{name}/events", EventPage, tag="events")
async def events(
    daemon: Daemon,
    name: Name,
    type: Annotated[list[str] | None, Meta(description="A type, or a prefix of types: `experiment`.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S, description="Wait for a first event.")] = 0.0,
    full: Annotated[bool, Meta(description="Long lists whole.")] = False,
    newest: Annotated[
        int | None, Meta(ge=1, le=MOST_NEWEST, description="Begin this many events before the end, not with the first.")
    ] = None,
    before: Annotated[
        str | None,
        Meta(max_length=CURSOR_CHARACTERS, description="`previous` of the page after: the events just before that."),
    ] = None,
) -> EventPage:
    """Events from the log, merged by time; arrays as their shape."""
    from rftd.daemon.http.views.event_pages import EventPager, decode_cursor
    from rftd.storage.queries.last_event import last_event_ns

    if sum(bound is not None for bound in (cursor, newest, before)) > 1:
        field = "newest" if newest is not None else "before"
        raise UsageError("`cursor`, `newest` and `before` each say where to begin", field=field, fix="give one of them")
    id = await daemon.find(name)
    start = decode_cursor(id, cursor) if cursor is not None else {}
    pager = EventPager(daemon.log, id, types=tuple(type or ()), full=full)
    if before is not None:
        return await pager.page_before(decode_cursor(id, before), limit=limit)
    if newest is not None:

        async def last_ns() -> int:
            async with daemon.read() as connection:
                return await last_event_ns(connection, id) + TIDYING_NS

        start = await pager.before_the_end(newest, until_ns=last_ns)
    if wait_s <= 0:
        return await pager.page(start, limit=limit)
    # A wait holds a connection and a subscription: the number of waiting clients is limited.
    with daemon.follower():
        return await pager.follow(start, limit=limit, wait_s=wait_s)
