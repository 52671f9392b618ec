"""`BesetRun`: a synthetic run into whose partitions a stranger writes too."""

from __future__ import annotations

from uuid import UUID

import numpy as np
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.ids import derive
from rftd.streams.events import task
from rftd.streams.events.experience import EvalScored, RolloutFailed
from rftd.streams.log.arrays import Array
from rftd.streams.log.writers import source_of

STRANGER = UUID(int=77)


class BesetRun(SyntheticRun):
    """A run whose every answer comes after a stranger's: of the same rollout, lease and id, or a failure."""

    def produce(self, group: UUID, rollout: int, lease: UUID, *, source: str = "") -> task.Member:
        """The stranger's record, then the holder's."""
        own = self.random
        self.random = np.random.default_rng(rollout + 7)
        for stranger in (source_of("explorer", STRANGER), "somebody"):
            super().produce(group, rollout, lease, source=stranger)
        self.random = own
        failed = RolloutFailed(group=group, rollout=rollout, stage=1, lease=lease, code="X", reason="no")
        self.recorder.write(failed, self.id, key=group, source=source_of("explorer", STRANGER))
        return super().produce(group, rollout, lease, source=source)

    def train(self) -> None:
        """Scores of the next evaluation that nobody was asked for, then the step."""
        evaluation = derive(self.id, "eval", self.version + 1)
        scored = EvalScored(
            eval=evaluation,
            lease=UUID(int=5),
            stage=1,
            taskset=0,
            row_start=0,
            version=self.version + 1,
            generation=0,
            rewards=Array.of([9.0] * 4, "f4"),
            tokens=Array.of([1] * 4, "u4"),
        )
        self.recorder.write(scored, self.id, key=evaluation, source=source_of("explorer", STRANGER))
        super().train()
