# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Upstream neighbours, the causes of a node: one function for each kind, for many keys at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from rftd.ops.decoding import json_decoder
from rftd.storage.lineage.graph import Key, Kind
from rftd.storage.lineage.reading import TableSnapshot
from rftd.storage.queries.books import COUNTED
from rftd.storage.queries.counting import EXECUTED


class Neighbour(NamedTuple):
    """A neighbour `far` of the node `near`: a cause (upstream), or an effect (downstream)."""

    near: Key
    """Key of the node."""
    far: Key
    """Key of the neighbour."""
    what: str
    """Relation between the node and the neighbour, read from the effect: `item`, `of` and others."""


class NeighbourTotal(NamedTuple):
    """The total number of a node's neighbours of a kind."""

    near: Key
    """Key of the node."""
    kind: Kind
    """Kind of the neighbours."""
    total: int
    """Number of neighbours."""


Neighbours = tuple[list[Neighbour], list[NeighbourTotal]]
"""Neighbours found, with total numbers by node and kind, given at least where `most` may have left neighbours out."""
Finder = Callable[[TableSnapshot, list[Key], int], Awaitable[Neighbours]]
"""A function from keys of one kind, and the maximum neighbours of a kind shown for each, to their neighbours."""


async def _experiments(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the weights of the parent with which each fork begins."""
    rows = await reading.among(
        "SELECT id, parent, forked_step FROM experiments WHERE id IN ({keys}) AND parent IS NOT NULL",
        (key.id for key in keys),
    )
    return [
        Neighbour(Key(Kind.EXPERIMENT, id), await newest(reading, parent, step), "forked from")
        for id, parent, step in rows
    ], []


async def _workers(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the experiments of workers."""
    sql = "SELECT id, experiment FROM workers WHERE id IN ({keys}) AND experiment IS NOT NULL"
    return _to_experiment(await reading.among(sql, (key.id for key in keys)), Kind.WORKER), []


async def _tasks(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the experiments of tasks."""
    sql = "SELECT DISTINCT subject, experiment FROM leases WHERE subject IN ({keys}) AND experiment IS NOT NULL"
    return _to_experiment(await reading.among(sql, (key.id for key in keys)), Kind.TASK), []


def _to_experiment(rows: Iterable[tuple[bytes, bytes]], kind: Kind) -> list[Neighbour]:
    """Returns the experiment of each (id, experiment) row as a neighbour."""
    return [Neighbour(Key(kind, id), Key(Kind.EXPERIMENT, experiment), "of") for id, experiment in rows]


async def _leases(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds task or evaluation, and worker, of leases."""
    rows = await reading.among(
        "SELECT id, kind, subject, worker FROM leases WHERE id IN ({keys}) AND kind IS NOT NULL ORDER BY id",
        (key.id for key in keys),
    )
    neighbours = []
    for id, kind, subject, worker in rows:
        near = Key(Kind.LEASE, id)
        neighbours.append(Neighbour(near, Key(Kind.EVAL if kind == "eval" else Kind.TASK, subject), "of"))
        neighbours.append(Neighbour(near, Key(Kind.WORKER, worker), "given to"))
    return neighbours, []


async def _rollouts(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the task of each rollout."""
    return [Neighbour(key, Key(Kind.TASK, key.id), "attempt at") for key in keys], []


async def _experiences(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the rollout of experiences, and the weights that sampled their tokens."""
    rows = await reading.among(
        f"""SELECT e.id, e.experiment, e.group_id, e.rollout, e.spans FROM experiences e
        WHERE e.id IN ({{keys}}) AND {COUNTED} ORDER BY e.id""",
        (key.id for key in keys),
    )
    neighbours = []
    for id, experiment, group, rollout, spans in rows:
        near = Key(Kind.EXPERIENCE, id)
        neighbours.append(Neighbour(near, Key(Kind.ROLLOUT, group, rollout), "left by"))
        tokens: dict[tuple[int, int], list[str]] = {}
        for version, generation, start, end in spans_of(spans):
            tokens.setdefault((version, generation), []).append(f"{start}-{end}")
        for (version, generation), ranges in tokens.items():
            weights = Key(Kind.WEIGHTS, experiment, version, generation)
            neighbours.append(Neighbour(near, weights, f"drawn by, tokens {', '.join(ranges)}"))
    return neighbours, []


async def _batches(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the items of batches, up to `most` each."""
    neighbours = []
    totals = []
    for key in keys:
        rows = await reading.rows(
            """SELECT i.item, i.experience, i.row, b.items FROM batch_items i
            JOIN batches b ON b.id = i.batch AND b.planned_offset = i.planned_offset
            WHERE i.batch = :batch ORDER BY i.item LIMIT :most""",
            batch=key.id,
            most=most,
        )
        for number, experience, row, _ in rows:
            far = Key(Kind.ROW, key.id, number) if experience is None else Key(Kind.EXPERIENCE, experience)
            neighbours.append(Neighbour(key, far, "item" if row is None else "row"))
        if rows:
            totals.append(NeighbourTotal(key, Kind.EXPERIENCE if rows[0][1] is not None else Kind.ROW, rows[0][3]))
    return neighbours, totals


async def _steps(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the executed batch of each step, the weights trained from, and the checkpoint from which the generation
    resumed.
    """
    neighbours = []
    for experiment, experiment_keys in _by_experiment(keys).items():
        forked = await _fork_of(reading, experiment)
        rows = await reading.among(
            f"SELECT step, generation, batch FROM {EXECUTED} t WHERE experiment = :experiment AND step IN ({{keys}})",
            {number for key in experiment_keys for number in (key.number, key.number - 1)},
            experiment=experiment,
        )
        batches = {(step, generation): batch for step, generation, batch in rows}
        resumed = await _resumptions(reading, experiment)
        for key in experiment_keys:
            if (batch := batches.get((key.number, key.generation))) is None:
                continue
            neighbours.append(Neighbour(key, Key(Kind.BATCH, batch), "executed"))
            before = [g for step, g in batches if step == key.number - 1 and g <= key.generation]
            if forked is not None and key.number - 1 == forked[1]:
                weights = await newest(reading, *forked)
            else:
                weights = Key(Kind.WEIGHTS, experiment, key.number - 1, max(before, default=0))
            neighbours.append(Neighbour(key, weights, "trained from"))
            if (checkpoint := resumed.get((key.generation, key.number - 1))) is not None:
                neighbours.append(Neighbour(key, checkpoint, "resumed from"))
    return neighbours, []


async def _resumptions(reading: TableSnapshot, experiment: bytes) -> dict[tuple[int, int], Key]:
    """Returns the checkpoint loaded for each (generation, version)."""
    rows = await reading.rows(
        """SELECT n.generation, n.version, MAX(c.generation) FROM generations n
        JOIN checkpoints c ON c.experiment = n.experiment AND c.step = n.version AND c.path = n.checkpoint
            AND c.generation < n.generation
        WHERE n.experiment = :experiment GROUP BY n.generation, n.version""",
        experiment=experiment,
    )
    return {
        (generation, version): Key(Kind.CHECKPOINT, experiment, version, older) for generation, version, older in rows
    }


async def _weights(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the step that made weights, the parent's weights, or the experiment of a base model."""
    neighbours = []
    for experiment, experiment_keys in _by_experiment(keys).items():
        forked = await _fork_of(reading, experiment)
        for key in experiment_keys:
            if forked is not None and key.number <= forked[1]:
                neighbours.append(Neighbour(key, await newest(reading, forked[0], key.number), "shared with"))
            elif key.number == 0:
                neighbours.append(Neighbour(key, Key(Kind.EXPERIMENT, experiment), "base model of"))
            else:
                neighbours.append(Neighbour(key, key._replace(kind=Kind.STEP), "made by"))
    return neighbours, []


async def _checkpoints(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the weights in checkpoints."""
    return [Neighbour(key, key._replace(kind=Kind.WEIGHTS), "holds") for key in keys], []


async def _evals(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the weights that answered evaluations."""
    rows = await reading.among(
        "SELECT id, experiment, version, generation FROM evals WHERE id IN ({keys})", (key.id for key in keys)
    )
    return [
        Neighbour(Key(Kind.EVAL, id), Key(Kind.WEIGHTS, experiment, version, generation), "answered by")
        for id, experiment, version, generation in rows
    ], []


async def _no_causes(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds nothing: the kind has no causes."""
    return [], []


async def newest(reading: TableSnapshot, experiment: bytes, version: int) -> Key:
    """Returns the key of a weight version in the newest generation, 0 for an unknown version."""
    [(generation,)] = await reading.rows(
        f"SELECT MAX(generation) FROM {EXECUTED} t WHERE experiment = :experiment AND step = :version",
        experiment=experiment,
        version=version,
    )
    return Key(Kind.WEIGHTS, experiment, version, generation or 0)


async def _fork_of(reading: TableSnapshot, experiment: bytes) -> tuple[bytes, int] | None:
    """Returns parent and step of a fork; None for other experiments."""
    rows = await reading.rows(
        "SELECT parent, forked_step FROM experiments WHERE id = :id AND parent IS NOT NULL", id=experiment
    )
    return (rows[0][0], rows[0][1]) if rows else None


def spans_of(text: str | None) -> list[tuple[int, int, int, int]]:
    """Returns (version, generation, start, end) of each span in a row's JSON."""
    return json_decoder(list[tuple[int, int, int, int]]).decode(text) if text else []


def _by_experiment(keys: list[Key]) -> dict[bytes, list[Key]]:
    """Groups keys by their experiment."""
    grouped: dict[bytes, list[Key]] = {}
    for key in keys:
        grouped.setdefault(key.id, []).append(key)
    return grouped


UPSTREAM: Final[dict[Kind, Finder]] = {
    Kind.EXPERIMENT: _experiments,
    Kind.WORKER: _workers,
    Kind.TASK: _tasks,
    Kind.LEASE: _leases,
    Kind.ROLLOUT: _rollouts,
    Kind.EXPERIENCE: _experiences,
    Kind.ROW: _no_causes,
    Kind.BATCH: _batches,
    Kind.STEP: _steps,
    Kind.WEIGHTS: _weights,
    Kind.CHECKPOINT: _checkpoints,
    Kind.EVAL: _evals,
}
"""Function finding the causes of each kind."""
