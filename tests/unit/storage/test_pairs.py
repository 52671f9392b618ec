"""A row that two events change at once is the row that each for itself would leave, on both databases."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from rftd.ops.clock import ManualClock
from rftd.storage.database import open_database
from rftd.storage.fold import Folded
from rftd.storage.pairs import Pair, joined
from rftd.storage.projections import PAIRS
from rftd.storage.projector import Projector
from rftd.storage.rebuild import digest
from rftd.storage.upserts import Upsert, Values
from rftd.storage.writer import TableWriter
from rftd.streams.backends.memory import MemoryLog

pytestmark = pytest.mark.anyio
PAIR = PAIRS[0]


def changes_of(seed: int) -> list[tuple[Upsert, Values]]:
    """Changes of few rows by both events, some of them several times, at places in any order."""
    random = np.random.default_rng(seed)
    made: list[tuple[Upsert, Values]] = []
    for place in random.permutation(24).tolist():
        part = PAIR.parts[int(random.integers(2))]
        kinds = [part.table.columns[name].type.python_type for name in part.columns]
        values = [f"{place}".encode() if kind is bytes else kind(place) for kind in kinds]
        row = dict(zip(part.columns, values, strict=True))
        row |= {"group_id": b"group", "rollout": int(random.integers(6))}
        row |= {part.partition: place % 3, part.offset: place}
        made.append((part, tuple(row[name] for name in part.columns)))
    return made


async def written(changes: list[tuple[Upsert, Values]], cuts: list[int], engine: AsyncEngine, pairs: list[Pair]) -> str:
    projector = Projector(MemoryLog(), engine, clock=ManualClock())
    await projector.reset()
    await projector.open()
    await projector.close()
    writer = TableWriter()
    for start, end in pairwise([0, *cuts, len(changes)]):
        rows: dict[Upsert, list[Values]] = {}
        for part, row in changes[start:end]:
            rows.setdefault(part, []).append(row)
        async with engine.begin() as connection:
            await writer.write(connection, Folded(rows=joined(rows, pairs)), asyncio.Event())
    return (await digest(engine)).tables["experiences"]


async def test_both_at_once_are_each_for_itself(either: AsyncEngine) -> None:
    plain = open_database("sqlite:///:memory:")
    for seed in range(6):
        changes = changes_of(seed)
        cuts = sorted(np.random.default_rng(seed).integers(0, len(changes), seed).tolist())
        assert await written(changes, cuts, either, [PAIR]) == await written(changes, [], plain, [])
    await plain.dispose()


def test_only_rows_of_one_key_become_one() -> None:
    produced, member = PAIR.parts
    ones = [(b"g", 0, *produced.owns), (b"g", 1, *produced.owns)]
    others = [(b"g", 1, *member.owns), (b"h", 0, *member.owns)]
    rows = joined({produced: ones, member: others}, [PAIR])
    assert rows == {produced: ones[:1], member: others[1:], PAIR: [(b"g", 1, *produced.owns, *member.owns)]}
    twice = {produced: [*ones, ones[1]], member: others}
    assert joined(twice, [PAIR]) == twice
