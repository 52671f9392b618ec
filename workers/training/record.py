"""`TrainingRecord`: an experiment's training as recorded in the log, including the executions that produced the present
weights.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.ops.clock import Clock
from rftd.streams.events.step import GenerationStarted, StepCompleted
from rftd.streams.folds.run_state import RunState
from rftd.streams.log import topics
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.follower import Follower
from rftd.streams.log.log import EventLog
from rftd.streams.log.start import start_of_experiment
from rftd.streams.log.topics import partition_of


class TrainingRecord:
    """A fold of the run's state, of each generation's start, and of every step as executed by each generation."""

    def __init__(self, experiment: UUID) -> None:
        """Begins before the first event of the experiment."""
        self.state = RunState(experiment)
        self.parent: TrainingRecord | None = None
        """Record of the parent experiment, for a fork."""
        self.generations: dict[int, GenerationStarted] = {}
        """Start of each generation, by number."""
        self._steps: dict[int, dict[int, StepCompleted]] = {}
        """Executed steps by generation, then by step; without metrics."""

    def apply(self, decoded: Decoded) -> None:
        """Folds one effective event into the run's state, and records starts and steps."""
        self.state.apply(decoded)
        event = decoded.event
        if isinstance(event, GenerationStarted):
            # setdefault: of two events of one generation the first counts, as in the fold.
            self.generations.setdefault(event.generation, event)
        elif isinstance(event, StepCompleted) and event.batch not in self.state.spine.batches.abandoned:
            # Metrics are most of an event's size, and a long history has a hundred thousand steps.
            lean = msgspec.structs.replace(event, metrics={})
            self._steps.setdefault(event.generation, {}).setdefault(event.step, lean)

    def surviving(self) -> dict[int, StepCompleted]:
        """Returns the executed steps by number, each as executed in the history of the present weights.

        These are the newest generation's steps, then steps of the generation whose checkpoint was resumed, and so on.
        Steps not reached again by the newest generation count as executed by the last generation before.
        """
        survivors: dict[int, StepCompleted] = {}
        generation = max(self.generations, default=-1)
        end = None
        while generation >= 0:
            start = self.generations[generation].version
            executed = self._steps.get(generation, {})
            survivors |= {
                step: done for step, done in executed.items() if step > start and (end is None or step <= end)
            }
            # A generation's own steps end where a newer one went back to, if that was earlier.
            end = start if end is None else min(start, end)
            older = (earlier for earlier, steps in self._steps.items() if earlier < generation and end in steps)
            generation = max(older, default=-1)
        for _, executed in sorted(self._steps.items(), reverse=True):
            for step, done in executed.items():
                survivors.setdefault(step, done)
        return dict(sorted(survivors.items()))


async def read_record(log: EventLog, experiment: UUID, *, clock: Clock) -> TrainingRecord:
    """Returns the record up to the log's present heads, with the records of the ancestors.

    Raises NotFoundError if the experiment, or an ancestor, was never accepted.
    """
    record = TrainingRecord(experiment)
    start = await start_of_experiment(log, experiment)
    streams = (topics.EXPERIMENTS, topics.WEIGHTS, topics.CHECKPOINTS)
    partitions = [partition_of(stream, experiment) for stream in streams]
    positions = {partition: start.get(partition, 0) for partition in partitions}
    follower = Follower(log, record, experiment=experiment, positions=positions, clock=clock)
    try:
        await follower.catch_up()
    finally:
        await follower.close()
    if (forked := record.state.spine.forked) is not None:
        record.parent = await read_record(log, forked.parent, clock=clock)
    return record
