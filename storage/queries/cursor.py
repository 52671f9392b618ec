"""Cursors of lists: the key of the last row read, as opaque text, bound to a list, an order and a release.

A page after a key is the same whatever rows arrived before it, and costs the same at any depth of the list.
"""

from __future__ import annotations

import base64
from typing import Final

import msgspec

from rftd.ops.decoding import msgpack_decoder
from rftd.ops.errors import UsageError

FORM: Final = 1
"""Number of the present form of keys; another release may have another one."""
CURSOR_CHARACTERS: Final = 1000
"""Maximum number of characters in a cursor."""

KeyPart = int | float | str
"""One column of a row's key in an order of a list."""
Key = tuple[KeyPart, ...]
"""Columns of a row's key, in the order of sorting."""


class _Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Content of a cursor: form, list, order, and the key of the last row of the page before."""

    form: int
    """Version of the cursor's form, changed with the meaning of the key."""
    list: str
    """Name of the list."""
    order: str
    """Name of the order."""
    key: tuple[int | float | str, ...]
    """Key of the last row of the page before."""


class CursorError(UsageError):
    """The cursor belongs to another list, order or release, or is no cursor."""

    code = "RFTD-API-010"
    """Code of the error, as in the answers and on the page of errors."""
    http_status = 400
    """HTTP status of the answer."""
    remedy = "Start again without a cursor, or use the cursor of an answer of the same list in the same order."
    """Fix shown for the error."""


def cursor_of(name: str, order: str, key: Key) -> str:
    """Returns the cursor behind a row with this key, in a list with this name and order."""
    text = msgspec.msgpack.encode(_Cursor(FORM, name, order, key))
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def key_of(cursor: str, name: str, order: str, kinds: tuple[type, ...] | None) -> Key:
    """Returns the key in a cursor. Raises CursorError, unless list, order and kinds of key parts are these.

    Without `kinds` the key has any number of whole numbers.
    """
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        decoded = msgpack_decoder(_Cursor).decode(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, msgspec.DecodeError) as error:
        raise CursorError("this is not a cursor of a list", field="cursor") from error
    if decoded.form != FORM:
        raise CursorError("the cursor is of another release", field="cursor")
    if decoded.list != name:
        raise CursorError("the cursor is of another list", field="cursor")
    if decoded.order != order:
        raise CursorError(f"the cursor is of the order {decoded.order[:40]!r}, not {order!r}", field="cursor")
    if kinds is None:
        kinds = (int,) * len(decoded.key)
    if len(decoded.key) != len(kinds) or any(
        not isinstance(part, (int, float) if kind is float else kind)
        for part, kind in zip(decoded.key, kinds, strict=True)
    ):
        raise CursorError("the cursor is damaged", field="cursor")
    if any(isinstance(part, int) and not -(1 << 63) <= part < 1 << 63 for part in decoded.key):
        raise CursorError("the cursor is damaged", field="cursor")
    return decoded.key
