"""`shares_of`: the owners of the steps in a history; a fork's begins with its ancestors' steps, then its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.storage.queries.rows import fetch_one

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

ENDLESS: Final = 1 << 62
"""A step number above all steps, for a share or a list without an end."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The steps `first` to `last` of an experiment, as a part of the requested history."""

    experiment: UUID
    """Id of the experiment owning the steps."""
    first: int
    """The first step of the share."""
    last: int
    """The last step of the share; `ENDLESS` for the requested experiment."""
    inherited: bool
    """True if the steps belong to an ancestor."""


class _Forked(msgspec.Struct, frozen=True):
    """A row with the parent of a fork and the last step shared with the parent."""

    parent: str
    """Id of the parent, as text."""
    forked_step: int
    """The last weight version shared with the parent."""


async def shares_of(connection: AsyncConnection, experiment: UUID) -> list[Share]:
    """Returns the history of an experiment, oldest first. An ancestor missing from the tables has no rows."""
    chain: list[Share] = []
    last = ENDLESS
    while True:
        forked = await fetch_one(
            connection,
            _Forked,
            "SELECT parent, forked_step FROM experiments WHERE id = :id AND parent IS NOT NULL",
            id=experiment.bytes,
        )
        first = 0 if forked is None else forked.forked_step + 1
        chain.append(Share(experiment=experiment, first=first, last=last, inherited=bool(chain)))
        # A damaged or imported log may name an ancestor as its own descendant: the walk must end.
        if forked is None or any(share.experiment == UUID(forked.parent) for share in chain):
            return chain[::-1]
        experiment = UUID(forked.parent)
        last = min(last, forked.forked_step)
