"""The checkpoints of an experiment: a list, the files of one, and each file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.route import After, Cursor, Daemon, Int, Limit, Name, Step, download, read
from rftd.ops.errors import NotFoundError
from rftd.storage.queries.checkpoint_pages import CheckpointRecord, checkpoint_of, page_checkpoints
from rftd.storage.queries.weights import CheckpointRow

if TYPE_CHECKING:
    from rftd.storage.files.checkpoint_file import OpenedFile
    from rftd.streams.events.checkpoint import CheckpointCommitted

_PATH_CHARACTERS = 1000
"""Maximum number of characters in a file's path in a request."""


class CheckpointList(msgspec.Struct, frozen=True, kw_only=True):
    """Some checkpoints of an experiment, in the requested order."""

    items: list[CheckpointRow]
    """Checkpoints of the page, in order."""
    next: str | None
    """`cursor` of the next page; null at the end."""


class CheckpointFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a checkpoint, as committed."""

    path: str
    """Path within the checkpoint's folder."""
    size_bytes: int
    """Size of the file, in bytes."""
    sha256: str
    """SHA-256 of the file."""


class CheckpointFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint with its files."""

    checkpoint: CheckpointRow
    """The checkpoint."""
    files: list[CheckpointFile]
    """Files of the checkpoint's folder."""


@read("/v1/experiments/{name}/checkpoints", CheckpointList, tag="checkpoints", name="checkpoints")
async def checkpoints(
    daemon: Daemon,
    name: Name,
    deleted: Annotated[bool, Meta(description="Also those whose folders were deleted.")] = False,
    order: Literal["newest", "oldest"] = "newest",
    limit: Limit = 50,
    cursor: Cursor = None,
    after: After = None,
) -> CheckpointList:
    """The checkpoints of an experiment, by step; each tells whether its step counts."""
    id = await daemon.find(name, after)
    async with daemon.read() as connection:
        page = await page_checkpoints(connection, id, existing=not deleted, order=order, limit=limit, cursor=cursor)
    return CheckpointList(items=page.items, next=page.next)


@read("/v1/experiments/{name}/checkpoints/{step}", CheckpointFiles, tag="checkpoints", name="checkpoint")
async def checkpoint(
    daemon: Daemon, name: Name, step: Step, generation: Int = None, after: After = None
) -> CheckpointFiles:
    """The files of the checkpoint of a step, by default of its newest generation, with sizes and digests."""
    _, record, event = await _committed(daemon, name, step, generation, after)
    files = [CheckpointFile(path=ref.path, size_bytes=ref.size_bytes, sha256=ref.sha256) for ref in event.files]
    return CheckpointFiles(checkpoint=record.row, files=files)


@download("/v1/experiments/{name}/checkpoints/{step}/file", tag="checkpoints", name="checkpoint_file")
async def checkpoint_file(
    daemon: Daemon,
    name: Name,
    step: Step,
    path: Annotated[str, Meta(max_length=_PATH_CHARACTERS, description="Path within the checkpoint's folder.")],
    generation: Int = None,
) -> OpenedFile:
    """The bytes of one file of a checkpoint, whole or a range; `Repr-Digest` has its sha256."""
    import asyncio

    from rftd.storage.files.checkpoint_file import open_checkpoint_file

    id, _, event = await _committed(daemon, name, step, generation, None)
    origin = await daemon.operations.text_origin(id)
    if origin is None:
        raise NotFoundError(f"the log holds no submission of {name}")
    return await asyncio.to_thread(open_checkpoint_file, origin.spec, event, path)


async def _committed(
    daemon: Daemon, name: str, step: int, generation: int | None, after: str | None
) -> tuple[UUID, CheckpointRecord, CheckpointCommitted]:
    """Returns an experiment's checkpoint with its record in the log. Raises NotFoundError."""
    from rftd.streams.events.checkpoint import CheckpointCommitted
    from rftd.streams.log.codec import decode_as
    from rftd.streams.log.topics import CHECKPOINTS, Partition

    id = await daemon.find(name, after)
    async with daemon.read() as connection:
        record = await checkpoint_of(connection, id, step, generation)
    records = await daemon.log.read(Partition(CHECKPOINTS, record.partition), record.offset, max_records=1)
    if not records or records[0].offset != record.offset:
        raise NotFoundError(f"the log holds no record of the checkpoint of step {step}", field="step")
    return id, record, decode_as(records[0], CheckpointCommitted)
