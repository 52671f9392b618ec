"""`RecordedGroups`: recorded rollouts of a dataset in their groups, as experiences for a batch to train on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from uuid import UUID

from rftd.ops import limits
from rftd.streams.events.batch import RowItem
from rftd.streams.events.experience import ExperienceProduced, RunStep, SamplingSpan
from rftd.streams.events.task import GroupClosed, Member
from rftd.streams.log.arrays import Array
from rftd.workers.datasets.recorded import RecordedRollout
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.training.group_samples import BatchExperience


class RecordedGroups:
    """The groups of recorded rollouts that contain the rows of one batch.

    Adjacent rows with an equal `group` are one group, read completely, so that advantages do not depend on the batch.
    """

    def __init__(self, dataset: Taskset, rows: Sequence[RowItem], *, stage: int, max_model_len: int) -> None:
        """Reads the groups of the batch's `rows`. Raises DataError for an invalid rollout in one of them. Blocks."""
        self._dataset = dataset
        self._stage = stage
        self._max_model_len = max_model_len
        self._rollouts: dict[int, RecordedRollout] = {}
        self.closed: list[GroupClosed] = []
        """The groups, in the order of their first rows in the batch."""
        self.members: dict[UUID, ExperienceProduced] = {}
        """Experiences of all rollouts of the groups."""
        self.experiences: list[BatchExperience] = []
        """Experiences of the batch's rows, in order."""
        indices: dict[int, int] = {}
        for planned in rows:
            first, end = self._extent_of_group(planned.row)
            if first not in indices:
                indices[first] = len(self.closed)
                self._add_group(first, end)
            self.experiences.append(BatchExperience(self.members[_id_of_row(planned.row)], indices[first]))

    def _read_rollout(self, row: int) -> RecordedRollout:
        """Returns the recorded rollout of a row, read once."""
        if row not in self._rollouts:
            self._rollouts[row] = self._dataset.recorded(row, max_model_len=self._max_model_len)
        return self._rollouts[row]

    def _extent_of_group(self, row: int) -> tuple[int, int]:
        """Returns the first row of a row's group, and the row after the last one."""
        group = self._read_rollout(row).group
        first = row
        while first > 0 and row - first < limits.GROUP_MEMBERS and self._read_rollout(first - 1).group == group:
            first -= 1
        end = row + 1
        while (
            end < len(self._dataset) and end - first < limits.GROUP_MEMBERS and self._read_rollout(end).group == group
        ):
            end += 1
        return first, end

    def _add_group(self, first: int, end: int) -> None:
        """Adds the group of these rows, with an experience for each. Raises DataError for a repeated rollout."""
        members = []
        numbers: set[int] = set()
        for row in range(first, end):
            rollout = self._read_rollout(row)
            number = row - first if rollout.rollout is None else rollout.rollout
            if number in numbers:
                raise self._dataset.fault(row, f"has rollout {number}, and a row before it in its group has the same")
            numbers.add(number)
            event = _experience_of(rollout, row, first, number, self._stage)
            self.members[event.experience] = event
            members.append(Member(event.experience, number, 0, 0, event.reward, 0.0, len(event.tokens), 0, 0))
        self.closed.append(
            GroupClosed(group=_id_of_row(first), sequence=first, stage=self._stage, members=tuple(members), failed=0)
        )


def _id_of_row(row: int) -> UUID:
    """Returns the id of a row's experience within one batch."""
    return UUID(int=row)


def _experience_of(rollout: RecordedRollout, row: int, first: int, number: int, stage: int) -> ExperienceProduced:
    """Returns the experience of a recorded rollout, as if produced within the batch."""
    response = len(rollout.logprobs)
    temperature = rollout.temperature
    return ExperienceProduced(
        experience=_id_of_row(row),
        group=_id_of_row(first),
        rollout=number,
        stage=stage,
        lease=_id_of_row(first),
        tokens=Array.of(rollout.tokens, "u4"),
        prompt_tokens=rollout.prompt_tokens,
        loss_mask=Array.of([1] * response if rollout.loss_mask is None else rollout.loss_mask, "u1"),
        logprobs=Array.of(rollout.logprobs, "f4"),
        spans=(),
        reward=rollout.reward,
        metrics=rollout.metrics,
        finish=rollout.finish,
        steps=tuple(
            RunStep(step.tokens, step.prompt_tokens, step.reward, step.step_reward, step.state, step.role)
            for step in rollout.steps
        ),
        sampling=_spans_of_temperatures(temperature if isinstance(temperature, list) else [temperature] * response),
    )


def _spans_of_temperatures(temperatures: Sequence[float]) -> tuple[SamplingSpan, ...]:
    """Returns the spans of equal temperatures."""
    spans = []
    start = 0
    for temperature, run in groupby(temperatures):
        end = start + len(list(run))
        spans.append(SamplingSpan(start, end, temperature))
        start = end
    return tuple(spans)
