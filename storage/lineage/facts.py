# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""`nodes_of`: a line about each node, for many keys at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple
from uuid import UUID

from rftd.storage.lineage.graph import NUMBERED, Key, Kind, Node
from rftd.storage.lineage.reading import TableSnapshot
from rftd.storage.queries.books import COUNTED, ENDED
from rftd.storage.queries.counting import ABANDONED, EXECUTED


class Fact(NamedTuple):
    """The facts about a node, as held by the tables."""

    experiment: bytes | None
    """Id of the experiment as bytes; None if unknown."""
    text: str
    """The facts in one line."""
    at_ns: int | None
    """Time of creation, Unix time in nanoseconds; None if unknown."""


Facts = dict[Key, Fact]
"""Facts by key."""


async def nodes_of(reading: TableSnapshot, keys: list[Key]) -> dict[Key, Node]:
    """Returns a node for each key; the text of a node missing from the tables says so."""
    facts: Facts = {}
    for kind in dict.fromkeys(key.kind for key in keys):
        facts |= await _FACTS[kind](reading, [key for key in keys if key.kind is kind])
    names = await _names(reading, {key.id for key in keys if key.kind in NUMBERED})
    nodes = {}
    for key in keys:
        fact = facts.get(key, Fact(key.id if key.kind in NUMBERED else None, "not in the tables", None))
        nodes[key] = Node(
            id=f"{names[key.id]}/{key.kind}/{key.number}.{key.generation}" if key.kind in NUMBERED else _shown_id(key),
            kind=key.kind.value,
            experiment=str(UUID(bytes=fact.experiment)) if fact.experiment else None,
            text=fact.text,
            made_ns=fact.at_ns,
        )
    return nodes


def _shown_id(key: Key) -> str:
    """Returns the id by which the node can be found."""
    return f"{UUID(bytes=key.id)}/row/{key.number}" if key.kind is Kind.ROW else str(key.uuid)


async def _names(reading: TableSnapshot, experiments: set[bytes]) -> dict[bytes, str]:
    """Returns each experiment's name if unique, else the id."""
    rows = await reading.among(
        """SELECT id, name, (SELECT COUNT(*) FROM experiments o WHERE o.name = x.name) FROM experiments x
        WHERE id IN ({keys})""",
        experiments,
    )
    unique_names = {id: name for id, name, count in rows if count == 1 and name}
    return {id: unique_names.get(id) or str(UUID(bytes=id)) for id in experiments}


async def _experiments(reading: TableSnapshot, keys: list[Key]) -> Facts:
    """Returns name, state and steps of experiments."""
    sql = "SELECT id, name, state, total_steps, submitted_ns FROM experiments WHERE id IN ({keys})"
    return {
        Key(Kind.EXPERIMENT, id): Fact(id, f"{name}, {state or 'submitted'}, {steps} steps", at)
        for id, name, state, steps, at in await reading.among(sql, _ids(keys))
    }


async def _workers(reading: TableSnapshot, keys: list[Key]) -> Facts:
    """Returns role, host and state of workers."""
    sql = """SELECT id, experiment, role, slot, host, pid, started_ns, stopped_offset, lost_reason
        FROM workers WHERE id IN ({keys})"""
    facts = {}
    for id, experiment, role, slot, host, pid, at, stopped, lost in await reading.among(sql, _ids(keys)):
        where = f"{role} {slot}" if slot is not None and slot >= 0 else f"{role}"
        state = "stopped" if stopped is not None else f"lost: {lost}" if lost is not None else "live"
        facts[Key(Kind.WORKER, id)] = Fact(experiment, f"{where} on {host}, pid {pid}, {state}", at)
    return facts


async def _tasks(reading: TableSnapshot, keys: list[Key]) -> Facts:
    # Newest attempts first: the row of the first attempt is written last, and has the time of the first lease.
    """Returns number, row and outcome of tasks."""
    leased = await reading.among(
        """SELECT subject, experiment, stage, sequence, row_start, epoch, leased_ns, attempt FROM leases
        WHERE subject IN ({keys}) AND kind = 'task' ORDER BY attempt DESC""",
        _ids(keys),
    )
    closed = {
        id: (members, failed, reward, reason, at)
        for id, members, failed, reward, reason, at in await reading.among(
            "SELECT id, members, failed, reward_mean, reason, closed_ns FROM groups WHERE id IN ({keys})", _ids(keys)
        )
    }
    facts = {}
    for group, experiment, stage, sequence, row, epoch, at, _ in leased:
        text = f"task {stage}.{sequence}, row {row} of epoch {epoch}"
        if group in closed:
            members, failed, reward, reason, _ = closed[group]
            text += f", {members} experiences" + (f", mean reward {reward:.3f}" if reward is not None else "")
            text += f", {failed} failed: {reason}" if failed else ""
        else:
            text += ", open"
        facts[Key(Kind.TASK, group)] = Fact(experiment, text, at)
    return facts


async def _leases(reading: TableSnapshot, keys: list[Key]) -> Facts:
    """Returns attempt, slot and size of leases."""
    sql = """SELECT id, experiment, kind, slot, attempt, rollouts, row_start, row_end, leased_ns, expired_reason
        FROM leases WHERE id IN ({keys})"""
    facts = {}
    for id, experiment, kind, slot, attempt, rollouts, start, end, at, reason in await reading.among(sql, _ids(keys)):
        subject = f"rows {start} to {end}" if kind == "eval" else f"{rollouts} rollouts"
        text = f"attempt {attempt} in slot {slot}, {subject}" + (f", expired: {reason}" if reason else "")
        facts[Key(Kind.LEASE, id)] = Fact(experiment, text, at)
    return facts


async def _rollouts(reading: TableSnapshot, keys: list[Key]) -> Facts:
    """Returns duration or failure of rollouts."""
    sql = f"""SELECT e.group_id, e.rollout, COALESCE(e.experiment, e.failed_experiment), e.produced_ns,
        e.produced_offset, e.duration_s, e.failed_ns, e.failed_code, e.failed_reason
        FROM experiences e WHERE e.group_id IN ({{keys}}) AND {ENDED}"""
    facts = {}
    for group, number, experiment, produced_ns, offset, duration, failed, code, reason in await reading.among(
        sql, {key.id for key in keys}
    ):
        text = f"rollout {number}"
        text += f", failed with {code}: {reason}" if offset is None else f", {duration:.1f} s"
        facts[Key(Kind.ROLLOUT, group, number)] = Fact(experiment, text, failed if offset is None else produced_ns)
    return facts


async def _experiences(reading: TableSnapshot, keys: list[Key]) -> Facts:
    """Returns reward, tokens and retirement of experiences."""
    sql = f"""SELECT e.id, e.experiment, e.reward, e.prompt_tokens, e.response_tokens, e.finish, e.produced_ns, r.reason
        FROM experiences e LEFT JOIN retirements r ON r.experience = e.id WHERE e.id IN ({{keys}}) AND {COUNTED}"""
    facts = {}
    for id, experiment, reward, prompt, response, finish, at, reason in await reading.among(sql, _ids(keys)):
        text = f"reward {_figure_text(reward)}, {prompt}+{response} tokens, {finish}"
        text += f", retired: {reason}" if reason else ""
        facts[Key(Kind.EXPERIENCE, id)] = Fact(experiment, text, at)
    return facts


async def _rows(reading: TableSnapshot, keys: list[Key]) -> Facts:
    """Returns row, epoch and dataset of trained rows."""
    sql = """SELECT i.batch, i.item, b.experiment, i.digest, i.row, i.epoch, b.decided_at_ns FROM batch_items i
        JOIN batches b ON b.id = i.batch WHERE i.batch IN ({keys}) AND i.row IS NOT NULL"""
    return {
        Key(Kind.ROW, batch, number): Fact(experiment, f"row {row} of epoch {epoch}, dataset {digest[:12]}", at)
        for batch, number, experiment, digest, row, epoch, at in await reading.among(sql, {key.id for key in keys})
    }


async def _batches(reading: TableSnapshot, keys: list[Key]) -> Facts:
    """Returns step, size and staleness of batches."""
    sql = f"""SELECT b.id, b.experiment, b.step, b.items, b.groups, b.staleness_p95, {ABANDONED} AS abandoned,
        b.abandoned_reason, b.decided_at_ns FROM batches b WHERE b.id IN ({{keys}})"""
    facts = {}
    for id, experiment, step, size, groups, stale, abandoned, reason, at in await reading.among(sql, _ids(keys)):
        text = f"batch of step {step}, {size} items" + (f" of {groups} tasks" if groups else "")
        text += f", staleness p95 {stale} versions" if stale is not None else ""
        text += f", abandoned: {reason}" if abandoned else ""
        facts[Key(Kind.BATCH, id)] = Fact(experiment, text, at)
    return facts


async def _steps(reading: TableSnapshot, keys: list[Key]) -> Facts:
    """Returns items, tokens, duration and checksum of steps."""
    facts = {}
    async for experiment, step, generation, size, tokens, duration, checksum, at in _rows_by_number(
        reading, keys, "step", "items, tokens, duration_s, checksum, completed_ns", f"{EXECUTED} t"
    ):
        text = f"{size} items, {tokens} tokens, {duration:.1f} s, checksum {checksum}"
        facts[Key(Kind.STEP, experiment, step, generation)] = Fact(experiment, text, at)
    return facts


async def _weights(reading: TableSnapshot, keys: list[Key]) -> Facts:
    """Returns size, checksum and retirement of weights; `not announced` for unpublished versions."""
    facts = {key: Fact(key.id, "not announced", None) for key in keys}
    columns = "size_bytes, checksum, published_ns, published_offset, retired_offset, retired_reason"
    async for experiment, version, generation, size, checksum, at, published, retired, reason in _rows_by_number(
        reading, keys, "version", columns, "weight_versions"
    ):
        if published is not None:
            text = f"published, {size} bytes, checksum {checksum}"
            text += f", retired: {reason}" if retired is not None and retired > published else ""
            facts[Key(Kind.WEIGHTS, experiment, version, generation)] = Fact(experiment, text, at)
    return facts


async def _checkpoints(reading: TableSnapshot, keys: list[Key]) -> Facts:
    """Returns path, size and deletion of checkpoints."""
    facts = {}
    columns = "path, size_bytes, final, committed_ns, committed_offset, deleted_offset, deleted_reason"
    async for experiment, step, generation, path, size, final, at, committed, deleted, reason in _rows_by_number(
        reading, keys, "step", columns, "checkpoints"
    ):
        text = f"{path}, {size} bytes" + (", final" if final else "")
        text += f", deleted: {reason}" if deleted is not None and deleted > (committed or 0) else ""
        facts[Key(Kind.CHECKPOINT, experiment, step, generation)] = Fact(experiment, text, at)
    return facts


async def _evals(reading: TableSnapshot, keys: list[Key]) -> Facts:
    """Returns taskset, score and version of evaluations."""
    sql = "SELECT id, experiment, taskset, score, rows, version, completed_ns FROM evals WHERE id IN ({keys})"
    return {
        Key(Kind.EVAL, id): Fact(
            experiment, f"{taskset}: {_figure_text(score)} over {rows} rows by version {version}", at
        )
        for id, experiment, taskset, score, rows, version, at in await reading.among(sql, _ids(keys))
    }


def _ids(keys: Iterable[Key]) -> Iterator[bytes]:
    """Returns the ids of keys."""
    return (key.id for key in keys)


def _figure_text(figure: float | None) -> str:
    """Returns a figure as text with four significant digits, or `none` for None."""
    return "none" if figure is None else f"{figure:.4g}"


async def _rows_by_number(
    reading: TableSnapshot, keys: list[Key], number: str, columns: str, table: str
) -> AsyncIterator[tuple[Any, ...]]:
    """Yields rows of a table with the key (experiment, number, generation)."""
    for experiment in dict.fromkeys(_ids(keys)):
        numbers = {key.number for key in keys if key.id == experiment}
        sql = f"SELECT experiment, {number}, generation, {columns} FROM {table} WHERE experiment = :experiment"
        for row in await reading.among(f"{sql} AND {number} IN ({{keys}})", numbers, experiment=experiment):
            yield row


_FACTS: Final[dict[Kind, Callable[[TableSnapshot, list[Key]], Awaitable[Facts]]]] = {
    Kind.EXPERIMENT: _experiments,
    Kind.WORKER: _workers,
    Kind.TASK: _tasks,
    Kind.LEASE: _leases,
    Kind.ROLLOUT: _rollouts,
    Kind.EXPERIENCE: _experiences,
    Kind.ROW: _rows,
    Kind.BATCH: _batches,
    Kind.STEP: _steps,
    Kind.WEIGHTS: _weights,
    Kind.CHECKPOINT: _checkpoints,
    Kind.EVAL: _evals,
}
"""Function reading the facts of each kind."""
