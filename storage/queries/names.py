"""`resolve_experiment`: an experiment of the tables by the text typed by a person."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from rftd.ops.errors import NotFoundError
from rftd.storage.queries.rows import fetch_raw
from rftd.streams.folds.spine import Kept
from rftd.streams.spec.naming import Named, choose

_ID_PREFIX: Final = re.compile(r"[0-9a-f]{1,32}")
"""Pattern of the beginning of an id, in hexadecimal digits without hyphens."""
# A row without a submission comes from an event of a foreign or damaged log, not from an experiment.
_NAMED: Final = """SELECT x.id, x.name, x.kept FROM experiments x
WHERE x.submitted_offset IS NOT NULL {chosen} ORDER BY x.submitted_ns, x.id"""
"""SQL of id, name and location of the experiments meeting a condition, in order of submission."""


async def resolve_experiment(connection: AsyncConnection, text: str) -> UUID:
    """Returns the id of the experiment named by `text`, chosen by `choose` among rows with its name or id.

    Only for an unknown text all experiments are read, for the message of the NotFoundError.
    """
    if _is_storable(text):
        candidates = await _named(connection, *_condition(text))
        with suppress(NotFoundError):
            return choose(candidates, text)
    return choose(await _named(connection, "", {}), text)


def _condition(text: str) -> tuple[str, dict[str, object]]:
    """Returns the SQL condition for all experiments possibly meant by a text, and its parameters."""
    condition, parameters = "x.name IN (:text, :base)", {"text": text, "base": text.rpartition("@")[0]}
    prefix = text.replace("-", "").lower()
    if not _ID_PREFIX.fullmatch(prefix):
        return f"AND {condition}", {**parameters}
    low, high = (bytes.fromhex(prefix.ljust(32, digit)) for digit in "0f")
    return f"AND ({condition} OR x.id BETWEEN :low AND :high)", {**parameters, "low": low, "high": high}


async def _named(connection: AsyncConnection, chosen: str, parameters: dict[str, object]) -> list[Named]:
    """Returns the experiments meeting a condition, in order of submission."""
    _, rows = await fetch_raw(connection, _NAMED.format(chosen=chosen), **parameters)
    return [Named(UUID(bytes=bytes(id)), str(name), kept == Kept.REMOVED.value) for id, name, kept in rows]


def _is_storable(text: str) -> bool:
    """True if both databases can compare the text: PostgreSQL has no NUL, and neither has lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\x00" not in text
