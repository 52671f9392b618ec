"""`TaskQueues`: the tasks added to running stages, by their positions in the log."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rftd.streams.events.task import TasksAdded, TasksEnded
from rftd.streams.folds.ranges import Ascending
from rftd.streams.spec.schedule import shortened
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.streams.spec.stage_tasks import is_queue


class TaskQueue(msgspec.Struct):
    """The tasks added to one stage, by the positions of their records: two numbers per request."""

    rows: int = 0
    """Number of added tasks."""
    ended: bool = False
    """True once no task may be added any more."""
    firsts: Ascending = msgspec.field(default_factory=Ascending)
    """Number of the first task of each request, from 0."""
    offsets: Ascending = msgspec.field(default_factory=Ascending)
    """Offset on the spine of each request's record."""

    def add(self, event: TasksAdded, offset: int) -> None:
        """Counts the tasks of a record; tasks added after the end of the queue are ignored."""
        if self.ended or not event.tasks:
            return
        self.firsts.append(self.rows)
        self.offsets.append(offset)
        self.rows += len(event.tasks)

    @property
    def requests(self) -> int:
        """Number of requests with added tasks."""
        return len(self.offsets)

    def position_of(self, row: int) -> tuple[int, int]:
        """Returns the spine offset of the record with task number `row`, and the task's index in it. Raises
        LookupError.
        """
        if not 0 <= row < self.rows:
            raise LookupError(row)
        number = self.firsts.at_most(row)
        return self.offsets[number], row - self.firsts[number]


class TaskQueues(msgspec.Struct):
    """The queues of tasks of an experiment's stages, by stage."""

    by_stage: dict[int, TaskQueue] = {}
    """Queues by stage."""

    def of(self, stage: int) -> TaskQueue:
        """Returns the queue of a stage; an empty one before the first addition."""
        return self.by_stage.get(stage) or TaskQueue()

    def take(
        self,
        event: TasksAdded | TasksEnded,
        offset: int,
        spec: ExperimentSpec,
        planned: int,
        first_versions: Mapping[int, int],
    ) -> ExperimentSpec:
        """Folds added tasks, or the end of a queue, which sets the stage's length; returns the resulting specification.

        `offset` is the event's; `planned` is the last step planned before it; `first_versions` are the stages' first
        weight versions.
        """
        if not (0 <= event.stage < len(spec.stages) and is_queue(spec.stages[event.stage])):
            return spec
        queue = self.by_stage.setdefault(event.stage, TaskQueue())
        if isinstance(event, TasksAdded):
            queue.add(event, offset)
            return spec
        if queue.ended:
            return spec
        queue.ended = True
        stages = list(spec.stages)
        stages[event.stage] = _ended(
            stages[event.stage], queue.rows, planned=planned - first_versions.get(event.stage, planned)
        )
        return msgspec.structs.replace(spec, stages=tuple(stages))


def _ended(stage: StageSpec, rows: int, *, planned: int) -> StageSpec:
    """Returns the stage with the queue ended at `rows` tasks, and `planned` steps already planned.

    At least a step more than planned: the trainer keeps the weights of a last step known in advance.
    """
    assert stage.taskset is not None
    queue = msgspec.structs.replace(stage.taskset, rows=max(rows, 1))
    if stage.kind == "explore":
        return msgspec.structs.replace(stage, taskset=queue, collect_groups=min(stage.collect_groups, rows))
    # Enough uses to need all tasks: with this number of steps every task is tried.
    uses = rows * stage.algorithm.repeat_times * max(1, stage.policy.max_uses)
    steps = max(-(-uses // max(1, stage.experiences_per_step)), planned + 1)
    return shortened(msgspec.structs.replace(stage, taskset=queue), steps)
