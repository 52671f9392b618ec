"""The planner: why it has written no further plan. Follows `rftd.workers.planner.planner.Planner.decide`."""

from __future__ import annotations

from rftd.daemon.why.scene import Scene
from rftd.daemon.why.wait import Level, Wait
from rftd.streams.spec import StageSpec
from rftd.workers.planner.planner import oldest_flight_of, view_of
from rftd.workers.policies.registry import make_policy
from rftd.workers.policies.schedule import plan_ahead


def planner_wait(scene: Scene) -> Wait:
    """Of an experiment that runs, in a stage that is under way."""
    state, spine = scene.state, scene.state.spine
    stage = spine.stage_spec()
    step = max(spine.planned, spine.first_version) + 1
    if stage.kind == "explore":
        return _of(Level.WORKS, "collects", f"stage {stage.name} keeps what is explored, and trains nothing")
    if step > spine.last_version:
        if left := len(state.ledger.waiting) + len(state.ledger.cooling):
            return _of(Level.WORKS, "closes_books", f"retires {left} experiences")
        return _of(Level.DONE, "stage_planned", f"every step of stage {stage.name} is planned")
    if spine.generation < 0:
        return _of(Level.WAITS, "trainer_takes_up", "a trainer to take up the history", "trainer", "generation.started")
    if not spine.caught_up:
        what = f"steps {spine.version + 1} to {spine.furthest} to be executed again"
        return _of(Level.WAITS, "steps_again", what, "trainer", f"step {spine.furthest} is executed")
    if step > spine.version + plan_ahead(stage.policy):
        what = f"steps {spine.version + 1} to {spine.planned} to be trained: they are planned already"
        return _of(Level.WAITS, "plan_ahead", what, "trainer", f"step {spine.version + 1} is executed")
    if stage.kind == "train":
        return _of(Level.WORKS, "plans", f"plans step {step}")
    rested = sum(entry.eligible_at_ns <= scene.now_ns for entry in state.ledger.cooling.values())
    if (have := len(state.ledger.waiting) + rested) < stage.experiences_per_step:
        return _experiences(scene, stage, step, have)
    version, oldest = make_policy(stage.policy).waits_for(view_of(state, stage)), oldest_flight_of(state)
    if version is not None and oldest is not None and oldest <= version:
        what = f"groups that began on weight version {oldest} or newer: step {step} is the last that may hold them"
        return _of(Level.WAITS, "last_chance", what, "explorers", "they end (policy wait: true), or max_read_timeout")
    return _of(Level.WORKS, "plans", f"plans step {step}")


def _experiences(scene: Scene, stage: StageSpec, step: int, have: int) -> Wait:
    state, spine = scene.state, scene.state.spine
    rollouts = sum(len(group.missing) for group in state.groups.open.values())
    left_s = stage.max_read_timeout_s - (scene.now_ns - spine.waits_since_ns) / 1e9
    what = f"experiences for step {step}: {have} of {stage.experiences_per_step} are there"
    under_way = f"{rollouts} rollouts are under way in {len(state.groups.open)} groups"
    if resting := [entry for entry in state.ledger.cooling.values() if entry.eligible_at_ns > scene.now_ns]:
        rest_s = (min(entry.eligible_at_ns for entry in resting) - scene.now_ns) / 1e9
        under_way += f"; {len(resting)} used ones rest, the first for {rest_s:.1f} s more"
    return _of(
        Level.WAITS,
        "experiences",
        f"{what}; {under_way}",
        "explorers" if state.groups.open else "dispatcher",
        f"groups close, or what is there is planned in {max(0.0, left_s):.0f} s (max_read_timeout)",
    )


def _of(level: Level, state: str, what: str, on_whom: str = "", unblock: str = "") -> Wait:
    return Wait(role="planner", level=level, state=state, waiting_for=what, on_whom=on_whom, unblock=unblock)
