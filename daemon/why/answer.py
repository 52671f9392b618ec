"""Every role's wait, worst first."""

from __future__ import annotations

from collections.abc import Iterator

from rftd.daemon.why.holds import deciders_waits
from rftd.daemon.why.life import experiment_wait, log_wait, untold
from rftd.daemon.why.scene import Phase, Scene
from rftd.daemon.why.wait import Wait
from rftd.daemon.why.workers import worker_waits
from rftd.workers.membership import explain


def waits_of(scene: Scene) -> list[Wait]:
    """What each role of a driven experiment does or waits for. Pure; costs as much as there are open groups."""
    waits: list[Wait] = []
    try:
        waits.extend(_waits(scene))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a third party's policy, where the deciders are asked only now, may raise anything
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
        yield from deciders_waits(scene)
    if scene.phase in (Phase.LEADING, Phase.DRAINING):
        yield from worker_waits(scene)
