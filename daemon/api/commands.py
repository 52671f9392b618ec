"""The parts that all commands share: the description of their POST, their key, their longest time, their receipt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID

import msgspec

from rftd.daemon.api.place import show
from rftd.daemon.api.receipts import Receipt
from rftd.daemon.api.schema import answers, takes
from rftd.daemon.operations import Done
from rftd.ops.errors import UsageError, WaitTimeoutError
from rftd.ops.ids import Ids, derive

_REQUESTS: Final = UUID("6f6e6520-6c6f-5f67-8001-726674640000")
"""The namespace in which a key that is no UUID becomes one."""
COMMAND_TIMEOUT_S: Final = 120.0
"""Longest time for a command: a submission reads its datasets whole, to count and digest them."""


def command(asks: type[msgspec.Struct], *, required: bool, receipt: type[msgspec.Struct] = Receipt) -> dict[str, Any]:
    """The options of a POST route that reads a body of `asks` and answers 202, with a receipt of what is in the log."""
    return {
        "status_code": 202,
        "responses": answers(receipt, status=202),
        "openapi_extra": takes(asks, required=required),
    }


@asynccontextmanager
async def bounded(timeout_s: float = COMMAND_TIMEOUT_S) -> AsyncIterator[None]:
    """Ends a command that takes too long. Raises WaitTimeoutError: it may or may not be in the log."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise WaitTimeoutError(
            f"the command was not in the log after {timeout_s:g} s", fix="send it again with the same Idempotency-Key"
        ) from error


def receipt_of(experiment: UUID, done: Done) -> Receipt:
    """The answer to a command that took effect."""
    return Receipt(id=str(experiment), event=str(done.event), position=show(done.position))


def request_id(key: str | None, ids: Ids) -> UUID:
    """The key of a command as the log keeps it: itself if it is a UUID, one that follows from it, or a new one."""
    if key is None:
        return ids.new()
    if not key.strip():
        raise UsageError("an empty key", field="Idempotency-Key", fix="leave it out, or send a UUID")
    try:
        return UUID(key)
    except ValueError:
        return derive(_REQUESTS, key)
