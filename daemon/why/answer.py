"""Every role's wait, worst first."""

from __future__ import annotations

from collections.abc import Iterator

from rftd.daemon.why.dispatching import dispatcher_wait, eval_waits
from rftd.daemon.why.life import controller_wait, experiment_wait, log_wait, untold, wanted
from rftd.daemon.why.planning import planner_wait
from rftd.daemon.why.scene import Phase, Scene
from rftd.daemon.why.stragglers import straggler_wait
from rftd.daemon.why.wait import Level, Wait
from rftd.daemon.why.workers import worker_waits
from rftd.streams.folds.spine import Status
from rftd.workers.membership import explain

_DECIDERS = ("controller", "planner", "dispatcher")


def waits_of(scene: Scene) -> list[Wait]:
    """What each role of a driven experiment does or waits for. Pure; costs as much as there are open groups."""
    waits: list[Wait] = []
    try:
        waits.extend(_waits(scene))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a third party's policy, which is asked what it waits for, may raise anything
        waits.append(untold(explain(error)))
    return worst_first(waits)


def worst_first(waits: list[Wait]) -> list[Wait]:
    """By level; what belongs together stays together."""
    return sorted(waits, key=lambda wait: wait.level)


def _waits(scene: Scene) -> Iterator[Wait]:
    yield experiment_wait(scene)
    if (log := log_wait(scene)) is not None:
        yield log
    spine = scene.state.spine
    if spine.status is None or spine.status.ended:
        return
    if scene.phase is Phase.LEADING:
        yield from _decisions(scene)
    if scene.phase in (Phase.LEADING, Phase.DRAINING):
        yield from worker_waits(scene)


def _decisions(scene: Scene) -> Iterator[Wait]:
    spine = scene.state.spine
    if spine.status is Status.PAUSED:
        for role in _DECIDERS:
            yield Wait(
                role=role,
                level=Level.WAITS,
                state="paused",
                waiting_for=wanted(spine.cause) if spine.cause else "the experiment to be resumed",
                on_whom="you",
                unblock="that is put right; it goes on by itself" if spine.cause else f"rftd resume {scene.name}",
                since_ns=spine.status_ns,
            )
        return
    yield controller_wait(scene)
    if spine.stage < 0 or spine.stage_completed:
        for role in _DECIDERS[1:]:
            what = "the next stage to begin"
            yield Wait(
                role=role, level=Level.WAITS, state="stage", waiting_for=what, on_whom="controller", unblock=what
            )
        return
    planner = planner_wait(scene)
    yield planner
    if planner.state == "experiences" and (straggler := straggler_wait(scene)) is not None:
        yield straggler
    yield dispatcher_wait(scene)
    yield from eval_waits(scene)
