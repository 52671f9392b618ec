"""Dead letters: records and tasks set aside, one letter with its record or attempts, and the verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.commands import Said, Text
from rftd.daemon.http.views.route import After, Cursor, Daemon, Limit, command, read
from rftd.daemon.run.dlq.letter import (
    FORMS,
    Dead,
    DeadLetterList,
    DeadLetterPage,
    DeadLetterReceipt,
    TryView,
    listed,
    meant,
)
from rftd.daemon.trust.asker import AccessRole
from rftd.ops.errors import CodecError

if TYPE_CHECKING:
    from rftd.streams.log.envelope import Record
    from rftd.streams.log.log import EventLog

SHOWN_SIZE_BYTES: Final = 256
"""Number of bytes shown of an unreadable record."""
_TAG: Final = "dead letters"
"""Chapter of the OpenAPI document with these routes."""


class Decide(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/dead-letters/retry: the letter, with the reason and author of the verdict."""

    id: Said
    """Id of the dead letter, as accepted by GET /v1/dead-letters/one."""
    reason: Text = ""
    """Reason of the verdict in words, recorded with its event."""
    by: Text = ""
    """Author of the verdict, recorded with the event."""


class Drop(Decide, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/dead-letters/drop: as for a retry, with a required reason."""

    id: Said
    """Id of the dead letter, as accepted by GET /v1/dead-letters/one."""
    reason: Said
    """Reason why the letter needs no more attention."""


@read("/v1/dead-letters", DeadLetterList, tag=_TAG)
async def many(
    daemon: Daemon,
    experiment: Annotated[str | None, Meta(description="Only tasks of this one.")] = None,
    all: Annotated[bool, Meta(description="Those that were retried or dropped too.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
    after: After = None,
) -> DeadLetterList:
    """Records unusable by every reader, and tasks with too few successful rollouts; newest first."""
    # The wait for `after` comes once, before the name lookup: an experiment submitted just now has to be found.
    id = await daemon.find(experiment, after) if experiment is not None else None
    return listed(await _dead(daemon, after), everything=all, experiment=id, limit=limit, cursor=cursor)


@read("/v1/dead-letters/one", DeadLetterPage, tag=_TAG)
async def one(
    daemon: Daemon,
    id: Annotated[str, Meta(min_length=1, max_length=500, description=f"Which: {FORMS}.")],
    after: After = None,
) -> DeadLetterPage:
    """One dead letter with its record or its attempts."""
    return await page_of(daemon.log, meant(await _dead(daemon, after), id))


@command("/v1/dead-letters/retry", Decide, DeadLetterReceipt, tag=_TAG, role=AccessRole.ADMIN)
async def retry(daemon: Daemon, body: Decide, key: UUID) -> DeadLetterReceipt:
    """Retries a dead letter so that its task takes effect after all; idempotent."""
    chosen = meant(await _dead(daemon), body.id)
    return await daemon.operations.retry_dead_letter(chosen, by=body.by, reason=body.reason, request_id=key)


@command("/v1/dead-letters/drop", Drop, DeadLetterReceipt, tag=_TAG, role=AccessRole.ADMIN)
async def drop(daemon: Daemon, body: Drop, key: UUID) -> DeadLetterReceipt:
    """Removes a dead letter from the open ones, with a reason; idempotent."""
    chosen = meant(await _dead(daemon), body.id)
    return await daemon.operations.drop_dead_letter(chosen, by=body.by, reason=body.reason, request_id=key)


async def _dead(daemon: Daemon, after: str | None = None) -> list[Dead]:
    """Returns the dead letters, once the tables hold the record at `after`, failed tasks included."""
    from rftd.storage.queries.failed_tasks import failed_tasks

    async with daemon.read(after) as connection:
        tasks = await failed_tasks(connection)
    return await daemon.operations.dead_letters(tasks)


async def page_of(log: EventLog, dead: Dead) -> DeadLetterPage:
    """Returns the dead letter's page, with its record or attempts from the log."""
    from rftd.daemon.run.dlq.dead_letter_service import record_at

    tries = [TryView(**msgspec.structs.asdict(attempt)) for attempt in dead.task.tries] if dead.task else []
    record = None if dead.task else _record(await record_at(log, dead.place))
    return DeadLetterPage(letter=dead.letter, tries=tries, record=record)


def _record(record: Record | None) -> dict[str, Any]:
    """Returns an unusable record for people: type and payload if readable, else the claimed head and first bytes in
    hex.
    """
    from rftd.daemon.http.views.event_json import plain, view_unread
    from rftd.streams.log.deadletters import decode_ours

    if record is None:
        return {"missing": True}
    bytes_of = {
        "head_size_bytes": len(record.head),
        "value_size_bytes": len(record.value),
        "head_hex": record.head[:SHOWN_SIZE_BYTES].hex(),
        "value_hex": record.value[:SHOWN_SIZE_BYTES].hex(),
    }
    try:
        decoded = decode_ours(record)
    except CodecError as error:
        try:
            claimed = plain(view_unread(record, error))
        except CodecError:
            claimed = {"reason": error.what}
        return {"readable": False, **claimed, **bytes_of}
    return {"readable": True, "type": decoded.head.type, "payload": plain(decoded.event), **bytes_of}
