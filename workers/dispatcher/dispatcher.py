"""`Dispatcher`: what to lease, expire, close and complete now. Pure but for its view of who is alive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rftd.streams.events.task import TaskExpired
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.spec import StageSpec
from rftd.workers.dispatcher.closing import close_groups
from rftd.workers.dispatcher.decision import Decision, slot_partition
from rftd.workers.dispatcher.evaluation import complete_evals, lease_evals
from rftd.workers.dispatcher.leasing import Credits, lease_groups
from rftd.workers.dispatcher.liveness import Liveness


class Dispatcher:
    """Decisions of one experiment's dispatcher. The caller appends them, folds them, and asks again."""

    def __init__(self, state: RunState, liveness: Liveness) -> None:
        self._state = state
        self._liveness = liveness

    def decide(self, now_s: float) -> Sequence[Decision]:
        """Everything that is due at this reading of the monotonic clock."""
        state, spine = self._state, self._state.spine
        if spine.spec is None or spine.stage < 0 or spine.status not in (Status.RUNNING, Status.PAUSED):
            return ()
        stage = spine.stage_spec()
        self._liveness.tick(now_s)
        over = spine.stage_completed or spine.planned >= spine.last_version
        decisions = list(self._expire(over, now_s))
        decisions += close_groups(state, stage_over=over)
        decisions += complete_evals(state)
        if spine.status is Status.RUNNING and not spine.stage_completed:
            decisions += self._lease(stage, over, now_s)
        return decisions

    def _lease(self, stage: StageSpec, over: bool, now_s: float) -> Iterator[Decision]:
        explorers = [
            worker for worker in self._state.roster.explorers() if not self._liveness.silent(worker.worker, now_s)
        ]
        yield from lease_evals(self._state, stage, explorers)
        if stage.kind != "train" and not over:
            credits = Credits(self._state, explorers, stage.algorithm.repeat_times)
            yield from lease_groups(self._state, stage, credits)

    def _expire(self, over: bool, now_s: float) -> Iterator[Decision]:
        gone = self._state.roster.gone
        for lease in self._state.groups.leases.values():
            if over:
                reason = "the stage ended"
            elif lease.worker in gone:
                reason = f"its worker left: {gone[lease.worker].reason or 'it drained'}"
            elif self._liveness.overdue(lease.id, lease.deadline_s, now_s):
                reason = f"no progress within {lease.deadline_s} s"
            else:
                continue
            self._liveness.forget(lease.id)
            yield Decision(TaskExpired(lease=lease.id, slot=lease.slot, reason=reason), slot_partition(lease.slot))
        for evaluation in self._state.evals.open.values():
            for leased in evaluation.leases.values():
                if leased.worker in gone or self._liveness.overdue(leased.lease, leased.deadline_s, now_s):
                    yield Decision(
                        TaskExpired(lease=leased.lease, slot=leased.slot, reason="its worker left or made no progress"),
                        slot_partition(leased.slot),
                    )
