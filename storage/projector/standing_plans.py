"""`StandingPlans`: which plans count in the tables; each must belong to the step after the last planned step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from rftd.storage.queries.counting import ABANDONED, EXECUTED
from rftd.streams.events.batch import BatchAbandoned, BatchPlanned
from rftd.streams.events.experiment import ExperimentForked, StageStarted
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.ranges import PlannedBatches
from rftd.streams.log.envelope import Decoded

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

_STEP_BEFORE_SQL: Final = """SELECT id, forked_step FROM experiments WHERE forked_step IS NOT NULL
UNION ALL SELECT experiment, MAX(first_version) FROM stages WHERE started_offset IS NOT NULL GROUP BY experiment"""
"""The step before the first one that a stage or a fork may plan."""
_EXECUTED: Final = f"SELECT s.experiment, MAX(s.step) FROM {EXECUTED} s GROUP BY s.experiment"  # noqa: S608 - constants
"""The last step executed by each experiment."""
_STANDING: Final = f"""SELECT b.experiment, b.step, b.id, CASE WHEN {ABANDONED} THEN 1 ELSE 0 END FROM batches b
WHERE b.planned_offset IS NOT NULL AND (b.abandoned_offset IS NOT NULL OR b.step >= COALESCE(
    (SELECT MAX(s.step) FROM steps s WHERE s.experiment = b.experiment), 0))
ORDER BY b.planned_offset"""  # noqa: S608 - constants
"""The plans that may still be abandoned, and the abandoned ones."""


class StandingPlans:
    """The plans of every experiment, as far as needed for later plans; a fold of the spine."""

    def __init__(self, planned: Mapping[UUID, PlannedBatches] | None = None) -> None:
        """Continues from the plans returned by `read_standing_plans`."""
        self.planned = dict(planned or {})
        """The plans by experiment."""

    def counts(self, decoded: Decoded) -> bool:
        """Applies an effective event; False for a plan of any step except the experiment's next."""
        event = decoded.event
        experiment = decoded.head.experiment
        if experiment is None:
            return True
        match event:
            case BatchPlanned():
                return self._planned_of(experiment).plan(event)
            case BatchAbandoned():
                self._planned_of(experiment).abandon(event)
            case StepCompleted():
                self._planned_of(experiment).complete(event)
            case StageStarted():
                self._planned_of(experiment).begin(event.first_version)
            case ExperimentForked():
                self._planned_of(experiment).begin(event.at_step)
            case _:
                pass
        return True

    def _planned_of(self, experiment: UUID) -> PlannedBatches:
        """Returns the plans of an experiment, empty at first."""
        planned = self.planned.get(experiment)
        if planned is None:
            planned = self.planned[experiment] = PlannedBatches()
        return planned


async def read_standing_plans(connection: AsyncConnection) -> dict[UUID, PlannedBatches]:
    """Returns the plans of every experiment in the tables, as far as needed for later plans."""
    plans: dict[UUID, PlannedBatches] = {}

    def of(id: bytes) -> PlannedBatches:
        return plans.setdefault(UUID(bytes=bytes(id)), PlannedBatches())

    for id, version in await _read_rows(connection, _STEP_BEFORE_SQL):
        of(id).begin(version)
    for id, step in await _read_rows(connection, _EXECUTED):
        planned = of(id)
        planned.furthest = step
        planned.steps.add(step)
    for id, step, batch, abandoned in await _read_rows(connection, _STANDING):
        planned = of(id)
        if abandoned:
            planned.abandoned.add(UUID(bytes=bytes(batch)))
        else:
            planned.steps.add(step)
            planned.newest[step] = UUID(bytes=bytes(batch))
    return plans


async def _read_rows(connection: AsyncConnection, statement: str) -> list[tuple[Any, ...]]:
    """Returns the rows of a statement as tuples."""
    return [tuple(row) for row in await connection.exec_driver_sql(statement)]
