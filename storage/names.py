"""An experiment by what a person types: its name, `name@2`, its id, or a unique beginning of its id."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from rftd.ops.errors import NotFoundError, UsageError
from rftd.storage.tables.base import table_of
from rftd.storage.tables.experiments import Experiments
from rftd.streams.folds.spine import Kept

_CANDIDATES = 8


async def resolve_experiment(connection: AsyncConnection, wanted: str) -> UUID:
    """The experiment that `wanted` names; of equal names `NAME@N` is the N-th submitted, from 1.

    A name is that of an experiment that was removed only if no other has it.

    Raises NotFoundError if there is none, UsageError with the candidates if there are several.
    """
    table = table_of(Experiments)
    rows = await connection.execute(
        select(table.c.id, table.c.name, table.c.kept)
        .where(table.c.submitted_offset.is_not(None))
        .order_by(table.c.submitted_ns, table.c.id)
    )
    every = [(UUID(bytes=bytes(id)), str(name), kept) for id, name, kept in rows]
    known = [(id, name) for id, name, _ in every]
    removed = {id for id, _, kept in every if kept == Kept.REMOVED.value}
    base, _, attempt = wanted.rpartition("@")
    if base and attempt.isascii() and attempt.isdigit():
        attempts = [id for id, name in known if name == base]
        if 0 < int(attempt) <= len(attempts):
            return attempts[int(attempt) - 1]
    if named := [(id, name) for id, name in known if name == wanted]:
        left = [each for each in named if each[0] not in removed] or named
        return _only(
            left, wanted, [f"{wanted}@{n} ({each[0]})" for n, each in enumerate(named, start=1) if each in left]
        )
    prefix = wanted.replace("-", "").lower()
    found = [(id, name) for id, name in known if prefix and id.hex.startswith(prefix)]
    if not found:
        near = ", ".join(name for _, name in known[-_CANDIDATES:])
        raise NotFoundError(f"no experiment {wanted!r}", fix=f"known: {near}" if near else "submit one first")
    return _only(found, wanted, [f"{id} ({name})" for id, name in found])


def _only(found: list[tuple[UUID, str]], wanted: str, candidates: list[str]) -> UUID:
    if len(found) > 1:
        raise UsageError(
            f"{wanted!r} names {len(found)} experiments", fix="use one of " + ", ".join(candidates[-_CANDIDATES:])
        )
    return found[0][0]
