"""The same from a log without a daemon: what the fold says; who lives is not known."""

from __future__ import annotations

from uuid import UUID

from rftd.daemon.supervisor.registry import Entry, Registry
from rftd.daemon.why.answer import waits_of, worst_first
from rftd.daemon.why.life import ended
from rftd.daemon.why.scene import Phase, Scene
from rftd.daemon.why.wait import Level, Wait, Why
from rftd.ops.clock import Clock
from rftd.ops.errors import NotFoundError, UsageError
from rftd.streams.folds.run_state import RunState, partitions_of
from rftd.streams.follower import Follower
from rftd.streams.halves import ROLES
from rftd.streams.log import EventLog, start_of
from rftd.workers.dispatcher.liveness import Liveness

_NEEDS_WORKERS = frozenset({"log", "trainer", "explorer"})


async def why_offline(log: EventLog, wanted: str, *, clock: Clock) -> Why:
    """What an experiment (name, name@N or id) would wait for. Reads the whole log. Raises NotFoundError, UsageError."""
    registry = Registry(log)
    try:
        await registry.catch_up()
    finally:
        await registry.close()
    entry = _named(list(registry.entries.values()), wanted)
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
    scene = Scene(
        name=entry.name,
        state=state,
        liveness=Liveness(),
        processes=(),
        roles=ROLES,
        phase=Phase.LEADING,
        append_s=0.0,
        failure=None,
        now_s=clock.monotonic_s(),
        now_ns=clock.now_ns(),
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


def _named(entries: list[Entry], wanted: str) -> Entry:
    """As `rftd.storage.names.resolve_experiment`, without tables."""
    entries.sort(key=lambda entry: (entry.submitted_ns, entry.id))
    base, _, number = wanted.rpartition("@")
    if base and number.isascii() and number.isdigit():
        same = [entry for entry in entries if entry.name == base]
        if 0 < int(number) <= len(same):
            return same[int(number) - 1]
    prefix = wanted.replace("-", "").lower()
    found = [entry for entry in entries if entry.name == wanted]
    found = found or [entry for entry in entries if prefix and entry.id.hex.startswith(prefix)]
    if not found:
        raise NotFoundError(f"no experiment {wanted!r} in this log", fix="see its names with rftd verify")
    if len(found) > 1:
        raise UsageError(f"{wanted!r} names {len(found)} experiments", fix=f"use one of {_ids(found)}")
    return found[0]


def _ids(entries: list[Entry]) -> str:
    ids: list[UUID] = [entry.id for entry in entries[:8]]
    return ", ".join(map(str, ids))
