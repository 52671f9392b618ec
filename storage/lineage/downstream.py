# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Downstream neighbours, the effects of a node: one function for each kind, for many keys at once."""

from __future__ import annotations

from collections import Counter
from typing import Final

from rftd.storage.lineage.graph import Key, Kind
from rftd.storage.lineage.reading import TableSnapshot
from rftd.storage.lineage.upstream import Finder, Neighbour, Neighbours, NeighbourTotal, newest, spans_of
from rftd.storage.queries.books import COUNTED, ENDED
from rftd.storage.queries.counting import EXECUTED

WIDEST_SPAN_VERSIONS: Final = 64
"""Number of versions, counted from the oldest one that sampled an experience, from which the experience is found; later
ones do not lead to it.
"""

_CHILDREN: Final = (
    (Kind.EXPERIMENT, "id", "experiments WHERE parent = :experiment", "forked_ns, id"),
    (Kind.TASK, "id", "groups WHERE experiment = :experiment", "stage, sequence"),
    (Kind.STEP, "experiment, step, generation", f"{EXECUTED} t WHERE experiment = :experiment", "step, generation"),
    (
        Kind.CHECKPOINT,
        "experiment, step, generation",
        "checkpoints WHERE experiment = :experiment AND committed_offset IS NOT NULL",
        "step, generation",
    ),
    (Kind.EVAL, "id", "evals WHERE experiment = :experiment", "version, id"),
    (Kind.WORKER, "id", "workers WHERE experiment = :experiment AND started_offset IS NOT NULL", "started_ns, id"),
)
"""The forks of an experiment, and its contents, by kind: kind, key columns, source and order."""


async def _experiments(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the forks of experiments, and their contents, up to `most` of each kind."""
    neighbours = []
    totals = []
    for key in keys:
        for kind, columns, source, order in _CHILDREN:
            rows = await reading.rows(
                f"SELECT {columns} FROM {source} ORDER BY {order} LIMIT :most", experiment=key.id, most=most
            )
            neighbours += [
                Neighbour(key, Key(kind, *row), "forked from" if kind is Kind.EXPERIMENT else "of") for row in rows
            ]
            if len(rows) == most:
                totals.append(NeighbourTotal(key, kind, await reading.count(source, experiment=key.id)))
    return neighbours, totals


async def _workers(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the leases given to workers."""
    neighbours = []
    totals = []
    for key in keys:
        source = "leases WHERE worker = :worker"
        rows = await reading.rows(
            f"SELECT id FROM {source} ORDER BY leased_ns, id LIMIT :most", worker=key.id, most=most
        )
        neighbours += [Neighbour(key, Key(Kind.LEASE, id), "given to") for (id,) in rows]
        if len(rows) == most:
            totals.append(NeighbourTotal(key, Kind.LEASE, await reading.count(source, worker=key.id)))
    return neighbours, totals


async def _tasks(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the ended rollouts of tasks."""
    rows = await reading.among(
        f"SELECT e.group_id, e.rollout FROM experiences e WHERE e.group_id IN ({{keys}}) AND {ENDED} ORDER BY 1, 2",
        (key.id for key in keys),
    )
    return _limited(
        [Neighbour(Key(Kind.TASK, group), Key(Kind.ROLLOUT, group, rollout), "attempt at") for group, rollout in rows],
        most,
    )


async def _leases(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the rollouts done under leases."""
    rows = await reading.among(
        f"""SELECT l.id, e.group_id, e.rollout FROM leases l JOIN experiences e ON e.group_id = l.subject
        WHERE l.id IN ({{keys}}) AND e.lease = l.id AND {ENDED} ORDER BY l.id, e.rollout""",
        (key.id for key in keys),
    )
    return _limited(
        [
            Neighbour(Key(Kind.LEASE, id), Key(Kind.ROLLOUT, group, rollout), "done under")
            for id, group, rollout in rows
        ],
        most,
    )


async def _rollouts(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the experience left by each rollout, if it counts: at most one, so `most` has no effect."""
    rows = await reading.among(
        f"SELECT e.group_id, e.rollout, e.id FROM experiences e WHERE e.group_id IN ({{keys}}) AND {COUNTED}",
        {key.id for key in keys},
    )
    ids = {(group, rollout): id for group, rollout, id in rows}
    return [
        Neighbour(key, Key(Kind.EXPERIENCE, ids[key.id, key.number]), "left by")
        for key in keys
        if (key.id, key.number) in ids
    ], []


async def _experiences(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the batches in which experiences are items: all of them, whatever `most`."""
    rows = await reading.among(
        """SELECT i.experience, i.batch FROM batch_items i
        JOIN batches b ON b.id = i.batch AND b.planned_offset = i.planned_offset
        WHERE i.experience IN ({keys}) ORDER BY b.step, b.planned_offset, i.experience""",
        (key.id for key in keys),
    )
    return [Neighbour(Key(Kind.EXPERIENCE, id), Key(Kind.BATCH, batch), "item") for id, batch in rows], []


async def _rows(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the batch of each row, whose id is a part of the row's key: one, so `most` has no effect."""
    return [Neighbour(key, Key(Kind.BATCH, key.id), "row") for key in keys], []


async def _batches(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the steps that executed batches: all of them, whatever `most`."""
    rows = await reading.among(
        f"""SELECT b.id, t.experiment, t.step, t.generation FROM batches b
        JOIN {EXECUTED} t ON t.experiment = b.experiment AND t.step = b.step AND t.batch = b.id
        WHERE b.id IN ({{keys}}) ORDER BY t.generation, b.id""",
        (key.id for key in keys),
    )
    return [
        Neighbour(Key(Kind.BATCH, id), Key(Kind.STEP, experiment, step, generation), "executed")
        for id, experiment, step, generation in rows
    ], []


async def _steps(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the weights made by each step: one version, so `most` has no effect."""
    return [Neighbour(key, key._replace(kind=Kind.WEIGHTS), "made by") for key in keys], []


async def _weights(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds experiences, evaluations, checkpoints, steps and forks made with weights; `most` limits the experiences
    alone.
    """
    neighbours: list[Neighbour] = []
    totals: list[NeighbourTotal] = []
    for key in keys:
        drawn, more = await _sampled_experiences(reading, key, most)
        neighbours += drawn
        totals += more
        parameters = {"experiment": key.id, "version": key.number, "generation": key.generation}
        evals = await reading.rows(
            """SELECT id FROM evals WHERE experiment = :experiment AND version = :version AND generation = :generation
            ORDER BY id""",
            **parameters,
        )
        neighbours += [Neighbour(key, Key(Kind.EVAL, id), "answered by") for (id,) in evals]
        checkpoints = await reading.rows(
            """SELECT step, generation FROM checkpoints WHERE experiment = :experiment AND step = :version
            AND generation = :generation AND committed_offset IS NOT NULL""",
            **parameters,
        )
        neighbours += [Neighbour(key, key._replace(kind=Kind.CHECKPOINT), "holds") for _ in checkpoints]
        neighbours += [Neighbour(key, step, "trained from") for step in await _next_steps(reading, key)]
        forks = await reading.rows(
            "SELECT id FROM experiments WHERE parent = :experiment AND forked_step = :version ORDER BY id",
            experiment=key.id,
            version=key.number,
        )
        if forks and await newest(reading, key.id, key.number) == key:
            neighbours += [Neighbour(key, Key(Kind.EXPERIMENT, id), "forked from") for (id,) in forks]
    return neighbours, totals


async def _sampled_experiences(reading: TableSnapshot, key: Key, most: int) -> Neighbours:
    """Returns at most `most` experiences with tokens sampled by a weight version, and their total if cut off."""
    # `spans` is JSON text, searched for a pair of numbers by a pattern; the indexed bounds on the versions keep the
    # number of searched rows small.
    source = f"""experiences WHERE experiment = :experiment AND oldest_version <= :version
        AND oldest_version > :version - {WIDEST_SPAN_VERSIONS} AND newest_version >= :version AND spans LIKE :span"""
    parameters = {"experiment": key.id, "version": key.number, "span": f"%[{key.number},{key.generation},%"}
    rows = await reading.rows(
        f"SELECT id, spans FROM {source} ORDER BY oldest_version DESC, id LIMIT :most", most=most, **parameters
    )
    neighbours = []
    for id, spans in rows:
        token_ranges = [f"{start}-{end}" for version, g, start, end in spans_of(spans) if (version, g) == key[2:]]
        neighbours.append(Neighbour(key, Key(Kind.EXPERIENCE, id), f"drawn by, tokens {', '.join(token_ranges)}"))
    if len(rows) < most:
        return neighbours, []
    return neighbours, [NeighbourTotal(key, Kind.EXPERIENCE, await reading.count(source, **parameters))]


async def _next_steps(reading: TableSnapshot, key: Key) -> list[Key]:
    """Returns the executed steps trained from these weights: of the steps after their version, each was trained from
    the newest generation of the weights that is not above its own.
    """
    rows = await reading.rows(
        f"SELECT step, generation FROM {EXECUTED} t WHERE experiment = :experiment AND step IN (:version, :next)",
        experiment=key.id,
        version=key.number,
        next=key.number + 1,
    )
    generations = [generation for step, generation in rows if step == key.number]
    return [
        Key(Kind.STEP, key.id, step, generation)
        for step, generation in sorted(rows)
        if step == key.number + 1 and max((g for g in generations if g <= generation), default=0) == key.generation
    ]


async def _checkpoints(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds the first steps of generations that resumed from checkpoints: all of them, whatever `most`."""
    neighbours = []
    for key in keys:
        rows = await reading.rows(
            f"""SELECT n.generation FROM generations n JOIN checkpoints c ON c.experiment = n.experiment
                AND c.step = n.version AND c.path = n.checkpoint
            JOIN {EXECUTED} t ON t.experiment = n.experiment AND t.step = n.version + 1 AND t.generation = n.generation
            WHERE n.experiment = :experiment AND n.version = :version AND c.generation = :generation
                AND n.generation > c.generation ORDER BY n.generation""",
            experiment=key.id,
            version=key.number,
            generation=key.generation,
        )
        neighbours += [
            Neighbour(key, Key(Kind.STEP, key.id, key.number + 1, resumed), "resumed from") for (resumed,) in rows
        ]
    return neighbours, []


async def _evals(reading: TableSnapshot, keys: list[Key], most: int) -> Neighbours:
    """Finds nothing: evaluations have no effects in the tables."""
    return [], []


def _limited(neighbours: list[Neighbour], most: int) -> Neighbours:
    """Limits the rollouts found for each key to the first `most`, and counts the total of rollouts where more exist."""
    counts = Counter(neighbour.near for neighbour in neighbours)
    shown_counts: Counter[Key] = Counter()
    shown = []
    for neighbour in neighbours:
        shown_counts[neighbour.near] += 1
        if shown_counts[neighbour.near] <= most:
            shown.append(neighbour)
    return shown, [NeighbourTotal(key, Kind.ROLLOUT, count) for key, count in counts.items() if count > most]


DOWNSTREAM: Final[dict[Kind, Finder]] = {
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
"""Function finding the effects of each kind."""
