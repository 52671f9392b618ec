"""`TaskQueues`: the tasks that were added to stages while they run, by their places in the log."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rftd.streams.events.task import TasksAdded, TasksEnded
from rftd.streams.folds.ranges import Ascending
from rftd.streams.spec.schedule import shortened
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.streams.spec.stage_tasks import is_queue


class TaskQueue(msgspec.Struct):
    """The places of the added tasks. Of each request that added some, two numbers are kept."""

    rows: int = 0
    """The number of tasks that were added."""
    ended: bool = False
    """True once no more of them are added."""
    firsts: Ascending = msgspec.field(default_factory=Ascending)
    """The row of the first task of each request."""
    offsets: Ascending = msgspec.field(default_factory=Ascending)
    """The offset of each request's record on the spine."""

    def add(self, event: TasksAdded, offset: int) -> None:
        """Counts the tasks of one record on; after the end they are none."""
        if self.ended or not event.tasks:
            return
        self.firsts.append(self.rows)
        self.offsets.append(offset)
        self.rows += len(event.tasks)

    @property
    def requests(self) -> int:
        """The number of requests that added tasks."""
        return len(self.offsets)

    def position_of(self, row: int) -> tuple[int, int]:
        """The offset of the record that added task `row`, and its index there. Raises LookupError for no such task."""
        if not 0 <= row < self.rows:
            raise LookupError(row)
        number = self.firsts.at_most(row)
        return self.offsets[number], row - self.firsts[number]


class TaskQueues(msgspec.Struct):
    """The queues of an experiment's stages."""

    by_stage: dict[int, TaskQueue] = {}

    def of(self, stage: int) -> TaskQueue:
        """The queue of a stage; an empty one before anything was added."""
        return self.by_stage.get(stage) or TaskQueue()

    def take(
        self,
        event: TasksAdded | TasksEnded,
        offset: int,
        spec: ExperimentSpec,
        planned: int,
        first_versions: Mapping[int, int],
    ) -> ExperimentSpec:
        """Takes in what was added to a stage, or its end; the specification as it is then.

        `planned` is the last step that was planned before the event; `first_versions` are those of the stages.
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
    """The stage with its queue ended at `rows` tasks, and `planned` of its steps planned by then.

    One step more than planned at least: the trainer keeps the weights of a last step that it knows to be the last.
    """
    assert stage.taskset is not None
    queue = msgspec.structs.replace(stage.taskset, rows=max(rows, 1))
    if stage.kind == "explore":
        return msgspec.structs.replace(stage, taskset=queue, collect_groups=min(stage.collect_groups, rows))
    # So many uses that fewer tasks cannot provide them: with as many steps every task is tried.
    uses = rows * stage.algorithm.repeat_times * max(1, stage.policy.max_uses)
    steps = max(-(-uses // max(1, stage.experiences_per_step)), planned + 1)
    return shortened(msgspec.structs.replace(stage, taskset=queue), steps)
