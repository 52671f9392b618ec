"""The digest of an experiment leaves out exactly the columns in which a place in the log or a path lands."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock
from rftd.storage.database.tables.base import Row, is_local
from rftd.storage.portable.experiment import experiment_digest
from rftd.storage.projector.projections import PROJECTIONS
from rftd.storage.projector.upserts import Changes
from rftd.streams.events.catalogue import definitions
from rftd.streams.events.experiment import ExperimentArchived
from rftd.streams.events.registry import Definition
from rftd.streams.log.envelope import Decoded, Head
from rftd.streams.log.marked import LogPlace, changed, moved
from rftd.streams.log.topics import Partition
from rftd.streams.log.writers import source_of
from rftd.streams.memory import MemoryLog
from rftd.streams.portable.experiment_records import OwnRecords

EVENTS = Path(__file__).parents[3] / "golden" / "events"
OFFSET = 7_000_000_019
"""The offset of each record, and every place that an event names."""
PATH = "/machine/of/this/log"
SOURCE = source_of("explorer", UUID(int=3))
"""The writer of each record: what only an explorer may write is in a table if an explorer wrote it."""
Column = tuple[str, str]


class Golden(msgspec.Struct):
    """The bytes that a release wrote."""

    value_hex: str


def rows_of(definition: Definition) -> dict[Column, set[object]]:
    """What an event of this type writes into each column, where each place is `OFFSET` and each path is `PATH`."""
    written = msgspec.json.decode((EVENTS / f"{definition.name}.v{definition.version}.json").read_bytes(), type=Golden)
    event = moved(definition.decode(bytes.fromhex(written.value_hex)), lambda path: PATH)
    event = changed(event, LogPlace, lambda mark, value, holder: OFFSET if isinstance(value, int) else value)
    head = Head(
        id=UUID(int=1),
        type=definition.name,
        version=definition.version,
        experiment=UUID(int=2),
        source=SOURCE,
        time_ns=0,
    )
    changes = Changes()
    for projection in PROJECTIONS:
        if (handler := projection.handlers.get(type(event))) is not None:
            handler(event, Decoded(Partition(definition.stream, 0), OFFSET, head, event), changes)
    found: dict[Column, set[object]] = {}
    for upsert, rows in changes.rows().items():
        for row in rows:
            for name, value in zip(upsert.columns, row, strict=True):
                found.setdefault((str(upsert.table.name), name), set()).add(value)
    return found


def tells_of_this_log(value: object) -> bool:
    return value == OFFSET or (isinstance(value, str) and (PATH in value or str(OFFSET) in value))


LANDED = {
    column
    for definition in definitions()
    for column, values in rows_of(definition).items()
    if any(map(tells_of_this_log, values))
}
TABLES = [table for table in Row.metadata.sorted_tables if not is_local(table)]
MARKED = {(str(table.name), str(column.name)) for table in TABLES for column in table.columns if is_local(column)}


def test_exactly_the_columns_are_marked_in_which_a_place_or_a_path_lands() -> None:
    local = {str(table.name) for table in Row.metadata.sorted_tables} - {str(table.name) for table in TABLES}
    assert {column for column in LANDED if column[0] not in local} == MARKED


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_each_column_that_is_called_an_offset_or_a_path_is_marked(table) -> None:
    """Also one that no golden event fills yet."""
    ends = ("offset", "path", "dir", "folder", "file")
    named = {str(column.name) for column in table.columns if str(column.name).rpartition("_")[2] in ends}
    assert named <= {column for name, column in MARKED if name == table.name}


@pytest.mark.anyio
async def test_where_an_archive_lies_is_no_difference_between_two_logs() -> None:
    """An import moves that path like the others."""
    digests = set()
    for path in ("/jobs/a/x.rftd", "/elsewhere/x.rftd"):
        recorder = Recorder(1)
        run = SyntheticRun(recorder, steps=1, seed=1).write()
        recorder.write(ExperimentArchived(path=path, size_bytes=1, sha256="0" * 64), run.id)
        log = MemoryLog()
        await log.append(recorder.drafts)
        digests.add(await experiment_digest(OwnRecords(log, run.id), clock=ManualClock()))
    assert len(digests) == 1
