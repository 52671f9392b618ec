# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""`find`: the key of a node from the text typed by a person: an id, the beginning of an id, or NAME/KIND/NUMBER."""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from rftd.ops.errors import NotFoundError, UsageError
from rftd.ops.ids import derive
from rftd.storage.lineage.graph import FORMS, Key, Kind
from rftd.storage.lineage.reading import TableSnapshot
from rftd.storage.queries.counting import EXECUTED
from rftd.storage.queries.names import resolve_experiment
from rftd.streams.log import topics
from rftd.streams.log.group_id import group_id

_CANDIDATES: Final = 8
"""Maximum number of candidates named in an error."""
_IDS: Final = (
    (Kind.EXPERIMENT, "experiments", "id"),
    (Kind.WORKER, "workers", "id"),
    (Kind.TASK, "leases", "subject"),
    (Kind.TASK, "groups", "id"),
    (Kind.LEASE, "leases", "id"),
    (Kind.EXPERIENCE, "experiences", "id"),
    (Kind.BATCH, "batches", "id"),
    (Kind.EVAL, "evals", "id"),
)
"""Tables and columns with ids. Ids of rollouts are in none: a rollout is found by its derived experience id."""
_PREFIX: Final = re.compile(r"[0-9a-f]{8,32}")
"""Form of an id's beginning, in hex."""
_NAMED: Final = re.compile(r"(?P<name>.+)/(?P<kind>[a-z]+)/(?P<number>\d{1,18})(?:\.(?P<second>\d{1,18}))?")
"""Form of NAME/KIND/NUMBER."""
_TABLES: Final = {
    Kind.STEP: (f"{EXECUTED} t", "step", "completed_offset"),
    Kind.WEIGHTS: ("weight_versions", "version", "published_offset"),
    Kind.CHECKPOINT: ("checkpoints", "step", "committed_offset"),
}
"""Table, number column and offset column of each numbered kind."""


async def find(connection: AsyncConnection, text: str) -> Key:
    """Returns the key of the node named by `text`.

    Raises UsageError for text of an unknown form, and with the candidates for an ambiguous text; NotFoundError.
    """
    reading = TableSnapshot(connection)
    if "/" in text:
        return await _find_named(connection, reading, text)
    matches = await _find_by_id(reading, text)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise _ambiguous(text, [f"{key.uuid} ({key.kind})" for key in matches])
    try:
        return Key(Kind.EXPERIMENT, (await resolve_experiment(connection, text)).bytes)
    except NotFoundError as error:
        if _PREFIX.fullmatch(_plain_hex(text)):
            raise NotFoundError(f"nothing has the id {text}", fix="see rftd events NAME, rftd experiences ls") from None
        raise NotFoundError(f"no experiment {text!r}, and no id", fix=f"{error.fix}; or give {FORMS}") from None


def _plain_hex(text: str) -> str:
    """Returns an id's text in lower case without hyphens."""
    return text.replace("-", "").lower()


async def _find_by_id(reading: TableSnapshot, text: str) -> list[Key]:
    """Returns the nodes with an id equal to `text` or beginning with `text`."""
    prefix = _plain_hex(text)
    if not _PREFIX.fullmatch(prefix):
        return []
    # A range of the key, served by every index; a pattern over the text would read whole tables.
    low = bytes.fromhex(prefix.ljust(32, "0"))
    high = bytes.fromhex(prefix.ljust(32, "f"))
    matches: dict[Key, None] = {}
    for kind, table, column in _IDS:
        more = " AND kind = 'task'" if (kind, table) == (Kind.TASK, "leases") else ""
        rows = await reading.rows(
            f"SELECT DISTINCT {column} FROM {table} WHERE {column} BETWEEN :low AND :high{more} LIMIT {_CANDIDATES}",
            low=low,
            high=high,
        )
        matches |= dict.fromkeys(Key(kind, id) for (id,) in rows)
    if not matches and len(prefix) == 32:
        return await _find_derived(reading, UUID(hex=prefix))
    return list(matches)


async def _find_derived(reading: TableSnapshot, id: UUID) -> list[Key]:
    """Returns a rollout by its experience's derived id, an experiment by its request, an event by its position."""
    rows = await reading.rows(
        "SELECT DISTINCT group_id, rollout FROM experiences WHERE id = :id", id=derive(id, "experience").bytes
    )
    if rows:
        return [Key(Kind.ROLLOUT, group, rollout) for group, rollout in rows]
    submitted = derive(id, "experiment").bytes
    rows = await reading.rows("SELECT id FROM experiments WHERE id = :id", id=submitted)
    return [Key(Kind.EXPERIMENT, submitted)] if rows else await _find_by_event(reading, id)


async def _find_by_event(reading: TableSnapshot, id: UUID) -> list[Key]:
    """Returns the weights or the checkpoint announced by an event: the tables keep the ids of these events."""
    positions = await reading.rows(
        """SELECT o.stream, o.applied_partition, o.applied_offset FROM positions p
        JOIN once o ON o.stream = p.stream AND o.partition = p.partition AND o.event = :id""",
        id=id.bytes,
    )
    for stream, partition, offset in positions:
        kind = {topics.WEIGHTS: Kind.WEIGHTS, topics.CHECKPOINTS: Kind.CHECKPOINT}.get(stream)
        if kind is None:
            continue
        table, number, offset_column = _TABLES[kind]
        rows = await reading.rows(
            f"""SELECT experiment, {number}, generation FROM {table}
            WHERE {offset_column} = :offset AND {offset_column.replace("_offset", "_partition")} = :partition""",
            offset=offset,
            partition=partition,
        )
        if rows:
            return [Key(kind, *row) for row in rows]
    return []


async def _find_named(connection: AsyncConnection, reading: TableSnapshot, text: str) -> Key:
    """Returns the key of NAME/KIND/NUMBER. Raises UsageError, NotFoundError."""
    match = _NAMED.fullmatch(text)
    if match is None or match["kind"] not in {*(kind.value for kind in _TABLES), "task", "batch", "eval", "row"}:
        raise UsageError(f"{text!r} names nothing that has a lineage", field="ID", fix=f"give {FORMS}")
    if match["kind"] == "row":
        return await _find_row(reading, text, match["name"], int(match["number"]))
    experiment = (await resolve_experiment(connection, match["name"])).bytes
    kind = Kind(match["kind"])
    number = int(match["number"])
    second = int(match["second"]) if match["second"] else None
    if kind is Kind.TASK:
        if second is None:
            raise UsageError(f"{text!r} does not say which stage", field="ID", fix="write NAME/task/STAGE.SEQUENCE")
        return await _find_task(reading, text, experiment, number, second)
    if kind in _TABLES:
        return await _find_numbered(reading, text, Key(kind, experiment, number), second)
    sql = {
        Kind.BATCH: "SELECT id FROM batches WHERE experiment = :experiment AND step = :number ORDER BY planned_offset",
        Kind.EVAL: "SELECT id FROM evals WHERE experiment = :experiment AND version = :number ORDER BY id",
    }[kind]
    rows = await reading.rows(sql, experiment=experiment, number=number)
    if not rows:
        raise NotFoundError(f"{match['name']} has no {kind} of {number}", fix="see rftd get")
    if len(rows) > 1:
        raise _ambiguous(text, [str(UUID(bytes=id)) for (id,) in rows])
    return Key(kind, rows[0][0])


async def _find_task(reading: TableSnapshot, text: str, experiment: bytes, stage: int, sequence: int) -> Key:
    """Returns the key of a task, given its stage and sequence. Raises NotFoundError for a task neither leased nor
    closed.
    """
    group = group_id(UUID(bytes=experiment), stage, sequence).bytes
    for table, column in (("groups", "id"), ("leases", "subject")):
        if await reading.rows(f"SELECT 1 FROM {table} WHERE {column} = :group LIMIT 1", group=group):
            return Key(Kind.TASK, group)
    raise NotFoundError(f"{text} was not given out", fix="stages and sequences count from 0")


async def _find_row(reading: TableSnapshot, text: str, batch: str, number: int) -> Key:
    """Returns the key of a trained row by batch and item. Raises NotFoundError."""
    batches = [key for key in await _find_by_id(reading, batch) if key.kind is Kind.BATCH]
    sql = "SELECT 1 FROM batch_items WHERE batch = :batch AND item = :item AND row IS NOT NULL"
    if len(batches) != 1 or not await reading.rows(sql, batch=batches[0].id, item=number):
        raise NotFoundError(f"there is no {text}", fix="write BATCH/row/ITEM")
    return Key(Kind.ROW, batches[0].id, number)


async def _find_numbered(reading: TableSnapshot, text: str, key: Key, generation: int | None) -> Key:
    """Returns the key with the requested generation, else with the newest. Raises NotFoundError."""
    table, number, offset = _TABLES[key.kind]
    rows = await reading.rows(
        f"""SELECT generation FROM {table}
        WHERE experiment = :experiment AND {number} = :number AND {offset} IS NOT NULL""",
        experiment=key.id,
        number=key.number,
    )
    generations = [row[0] for row in rows]
    if not generations and key.kind is Kind.WEIGHTS:  # trained, and not announced
        generations = [(await _find_numbered(reading, text, key._replace(kind=Kind.STEP), generation)).generation]
    if not generations or (generation is not None and generation not in generations):
        fix = f"it has generation {', '.join(map(str, sorted(generations)))}" if generations else "see rftd get"
        raise NotFoundError(f"there is no {text}", fix=fix)
    return key._replace(generation=max(generations) if generation is None else generation)


def _ambiguous(text: str, candidates: list[str]) -> UsageError:
    """Returns the error of a text that names several nodes."""
    shown = ", ".join(candidates[:_CANDIDATES])
    return UsageError(f"{text!r} names several things", field="ID", fix=f"use one of {shown}")
