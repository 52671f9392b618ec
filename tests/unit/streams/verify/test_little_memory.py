"""A check with hardly any memory says what one with much says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from synthetic.log.busy_run import BusyRun
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.streams.memory import MemoryLog
from rftd.streams.verify import books, facts, identities
from rftd.streams.verify.checker import verify
from rftd.streams.verify.report import VerifyReport
from rftd.streams.verify.scratch import Table

pytestmark = pytest.mark.anyio


async def checked(seed: int) -> VerifyReport:
    """What a check says of a log with several experiments, some things in them being wrong."""
    recorder = Recorder(seed)
    for number in range(3):
        SyntheticRun(recorder, name=f"run{number}", steps=4, seed=seed + number).write()
        BusyRun(recorder, name=f"busy{number}", steps=4, seed=seed + number).write()
    log = MemoryLog()
    for start in range(0, len(recorder.drafts), 500):
        await log.append(recorder.drafts[start : start + 500])
    return await verify(log)


@pytest.mark.parametrize("seed", [1, 2])
async def test_what_is_found_does_not_depend_on_memory(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rich = await checked(seed)

    def small(*args: Any, page_rows: int, memory_size_bytes: int) -> Table:
        return Table(*args, page_rows=4, memory_size_bytes=1)

    monkeypatch.setattr(facts, "Table", small)
    monkeypatch.setattr(identities, "_RUN_IDS", 32)
    monkeypatch.setattr(books, "_BLOCKS_PER_COMPARISON", 1)
    poor = await checked(seed)
    assert rich.records > 500
    assert rich.findings
    assert msgspec.json.encode(poor) == msgspec.json.encode(rich)
