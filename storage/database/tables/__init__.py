"""The tables of the projections, one file for each noun. In reading order:

base         column types, the registry
experiments  experiments, their notes, stars and labels; stages, warnings, transitions
tasks        leases, groups
experiences  experiences (no tokens), retirements
batches      batches, batch items
steps        steps, generations, evals
weights      weight versions, activations, overdue windows, checkpoints
workers      workers
progress     positions, fences, ids of events that count once, dead letters, meta
"""

from rftd.storage.database.tables import batches, experiences, experiments, progress, steps, tasks, weights, workers
from rftd.storage.database.tables.base import Row, table_of

__all__ = [
    "Row",
    "batches",
    "experiences",
    "experiments",
    "progress",
    "steps",
    "table_of",
    "tasks",
    "weights",
    "workers",
]
