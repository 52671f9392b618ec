"""The answer from a log without a daemon: the fold is known, the living processes are not."""

from __future__ import annotations

from rftd.daemon.registry import Entry, find_entry
from rftd.daemon.why.answer import waits_of, worst_first
from rftd.daemon.why.life import ended
from rftd.daemon.why.scene import Phase, Scene
from rftd.daemon.why.wait import Level, Wait, Why
from rftd.ops.clock import Clock
from rftd.streams.folds.run_state import RunState, partitions_of
from rftd.streams.follower import Follower
from rftd.streams.log import EventLog, start_of
from rftd.streams.split_submission import ROLES
from rftd.workers.control.deciders import asked
from rftd.workers.control.liveness import Liveness

# Heartbeats are not folded, so from the log alone every worker would look silent.
_NEEDS_WORKERS = frozenset({"log", "trainer", "explorer"})


async def why_offline(log: EventLog, wanted: str, *, clock: Clock) -> Why:
    """The answer for an experiment (name, name@N or id). Reads the whole log. Raises NotFoundError, UsageError."""
    entry = await find_entry(log, wanted)
    spine = entry.spine
    if spine.status is not None and spine.status.ended:
        return _why(entry, clock, [ended(spine)])
    state = RunState(entry.id)
    positions = start_of(partitions_of(entry.id))
    follower = Follower(log, state, experiment=entry.id, positions=positions, clock=clock)
    try:
        await follower.catch_up()
    finally:
        await follower.close()
    liveness = Liveness()
    now_s = clock.monotonic_s()
    # This machine's clock may be behind that of the daemon which wrote the log: cooldowns count from its readings
    # (rule 9).
    now_ns = max(clock.now_ns(), state.spine.recorded_ns)
    scene = Scene(
        name=entry.name,
        state=state,
        said=lambda: asked(state, liveness, now_s=now_s, now_ns=now_ns),
        liveness=liveness,
        processes=(),
        roles=ROLES,
        phase=Phase.LEADING,
        append_s=0.0,
        failure=None,
        now_s=now_s,
        now_ns=now_ns,
    )
    daemon = Wait(
        role="daemon",
        level=Level.STUCK,
        state="not_running",
        waiting_for="a daemon: none answers, so nothing goes on; the rest is what the log says",
        on_whom="you",
        unblock="rftd serve, with the same --data",
    )
    waits = [daemon, *(wait for wait in waits_of(scene) if wait.role not in _NEEDS_WORKERS)]
    return _why(entry, clock, worst_first(waits))


def _why(entry: Entry, clock: Clock, waits: list[Wait]) -> Why:
    status = entry.status.value if entry.status is not None else "unknown"
    return Why(
        experiment=str(entry.id), name=entry.name, status=status, live=False, asked_ns=clock.now_ns(), waits=waits
    )
