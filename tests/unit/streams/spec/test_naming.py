"""What a person types names the same experiment everywhere: in the tables, in the log, with a daemon and without."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.run.registry import find_entry
from rftd.daemon.run.why.answer import why_offline
from rftd.ops.clock import ManualClock
from rftd.ops.errors import RftdError, UsageError
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.storage.queries.names import resolve_experiment
from rftd.streams.events.experiment import ExperimentRemoved
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.naming import Named, choose

MANY = "9" * 5000
"""More digits than a number may have that is read from text."""


@pytest.mark.anyio
async def test_tables_log_and_why_without_a_daemon_agree(tmp_path: Path) -> None:
    recorder = Recorder()
    removed = SyntheticRun(recorder, name="same", steps=1).write()
    recorder.write(ExperimentRemoved(reason="room"), removed.id)
    kept = SyntheticRun(recorder, name="same", steps=1, seed=1).write()
    other = SyntheticRun(recorder, name="other", steps=1, seed=2).write()
    SyntheticRun(recorder, name="twice", steps=1, seed=3).write()
    SyntheticRun(recorder, name="twice", steps=1, seed=4).write()
    log, clock = MemoryLog(), ManualClock()
    await log.append(recorder.drafts)
    engine = open_database(sqlite_url(tmp_path / "state.db"))
    projector = Projector(log, engine, clock=clock)
    await projector.open()
    await projector.catch_up()

    async def in_tables(wanted: str) -> UUID:
        async with engine.connect() as connection:
            return await resolve_experiment(connection, wanted)

    async def in_log(wanted: str) -> UUID:
        return (await find_entry(log, wanted)).id

    async def without_a_daemon(wanted: str) -> UUID:
        return UUID((await why_offline(log, wanted, clock=clock)).experiment)

    async def said(find: object, wanted: str) -> UUID | str:
        try:
            return await find(wanted)  # type: ignore[operator]
        except RftdError as error:
            return f"{error.code}: {error.what}; {error.fix}"

    expected = {
        "same": kept.id,
        "same@1": removed.id,
        "same@2": kept.id,
        "other": other.id,
        str(other.id)[:13]: other.id,
    }
    for wanted in (*expected, "twice", "twice@3", "same@0", f"same@{MANY}", "same@²", "nobody", "-", "@1"):
        answers = {await said(find, wanted) for find in (in_tables, in_log, without_a_daemon)}
        assert len(answers) == 1, (wanted[:20], answers)
        assert wanted not in expected or answers == {expected[wanted]}
    await projector.close()
    await engine.dispose()


def test_several_are_named_with_their_numbers() -> None:
    ids = [UUID(int=number) for number in (1, 2, 3)]
    known = [Named(ids[0], "x", removed=False), Named(ids[1], "x", removed=True), Named(ids[2], "x", removed=False)]
    with pytest.raises(UsageError) as raised:
        choose(known, "x")
    assert raised.value.fix == f"use one of x@1 ({ids[0]}), x@3 ({ids[2]})"
