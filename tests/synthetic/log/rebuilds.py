"""Random logs, projected as they grow and once more from nothing: what `rftd rebuild --verify` compares."""

from __future__ import annotations

import numpy as np
from sqlalchemy import text
from synthetic.log.recorder import Recorder, interleaved
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.storage.projector.rebuild import RebuildReport, rebuild
from rftd.streams.log.envelope import Draft
from rftd.streams.memory import MemoryLog

IN_MEMORY = "sqlite:///:memory:"


def tape_of(seed: int, steps: int) -> list[Draft]:
    """Two experiments, one after the other, on the same partitions; the second is a fork of the first or is none."""
    recorder = Recorder(seed)
    first = SyntheticRun(recorder, name="a", steps=steps, seed=seed).write()
    SyntheticRun(recorder, name="b", steps=1, seed=seed, faults=False, parent=first.id if seed % 2 else None).write()
    return recorder.drafts


async def rebuilt(seed: int, *, spoil: bool = False) -> RebuildReport:
    """One random log: its tables after a projector that was started anew at random places, against a rebuild.

    `spoil` takes one row away before they are compared.
    """
    random = np.random.default_rng(seed)
    drafts = interleaved(tape_of(seed, int(random.integers(0, 4))), seed)
    cuts = sorted(random.integers(0, len(drafts) + 1, int(random.integers(0, 7))).tolist())
    max_records = int(random.choice([1, 5, 64, 1024], p=[0.1, 0.3, 0.3, 0.3]))
    log, engine = MemoryLog(), open_database(IN_MEMORY)
    try:
        for start, end in zip([0, *cuts], [*cuts, len(drafts)], strict=True):
            await log.append(drafts[start:end])
            projector = Projector(log, engine, clock=ManualClock(), max_records=max_records)
            await projector.catch_up()
            await projector.close()
        if spoil:
            async with engine.begin() as connection:
                await connection.execute(text("DELETE FROM batches WHERE step = 1"))
        return await rebuild(log, IN_MEMORY, clock=ManualClock(), live=engine)
    finally:
        await engine.dispose()
