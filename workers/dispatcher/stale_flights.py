"""Groups under way that the stage's policy gives up: what is being generated is too stale to be trained."""

from __future__ import annotations

from uuid import UUID

from rftd.ops.errors import StaleFlightError
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.folds.run_state import RunState
from rftd.streams.spec import StageSpec
from rftd.workers.dispatcher.closing import GivenUp
from rftd.workers.dispatcher.leasing import held_version
from rftd.workers.planner.planner import view_of
from rftd.workers.policies.policy import Flight
from rftd.workers.policies.registry import policy_of
from rftd.workers.policies.schedule import has_windows


def fresh_enough(state: RunState, stage: StageSpec, explorers: list[WorkerStarted]) -> list[WorkerStarted]:
    """Those whose rollouts would not be given up as soon as they begin: the others have yet to load newer weights."""
    if has_windows(stage.sync):
        return explorers  # a lease says what to load
    view, policy = view_of(state, stage), policy_of(stage.policy)
    flights = [Flight(worker.worker, held_version(state, worker)) for worker in explorers]
    too_old = {flight.group for flight in policy.abort_inflight(view, flights)}
    return [worker for worker in explorers if worker.worker not in too_old]


def stale_groups(state: RunState, stage: StageSpec) -> dict[UUID, GivenUp]:
    """Open groups that the policy aborts, with why. What is done of them is kept: the policy judges it like the rest.

    A flight is as old as the newest of its leases, so none is given up of which a rollout may be fresh; and no older
    than the weights that it waits for.
    """
    flights = [
        Flight(group.id, max(group.min_version, *held))
        for group in state.groups.open.values()
        if group.sequence >= 0 and group.leases and not group.terminal
        if min(held := [lease.held_version for lease in group.leases.values()]) >= 0
    ]
    if not flights:
        return {}
    view = view_of(state, stage)
    return {
        flight.group: GivenUp(
            StaleFlightError.code,
            f"its rollouts began on weight version {flight.oldest_version}, and step "
            f"{view.first_version + view.planned_steps} is planned (policy {stage.policy.kind})",
            keep_members=True,
        )
        for flight in policy_of(stage.policy).abort_inflight(view, flights)
    }
