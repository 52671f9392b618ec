"""First weights of a fork: the parent's history is executed again up to the shared version."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

import msgspec

from rftd.ops.clock import Clock
from rftd.ops.errors import TrainError
from rftd.streams.events.experiment import ExperimentForked
from rftd.streams.log.log import EventLog
from rftd.workers.learning.engine import TrainerEngine
from rftd.workers.training.environment import Drift, drift, environment_of
from rftd.workers.training.record import TrainingRecord, read_record
from rftd.workers.training.rerun import Rerun


class Inherited(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine reached the version shared with the parent."""

    checksum: str
    """Checksum of the weights, in the form recorded by the parent."""
    checkpoint: str
    """Folder of the first checkpoint; empty for the base model."""
    reason: str
    """Why a newer checkpoint was not used; empty if the newest was."""
    warning: str = ""
    """Warning if the weights differ from the parent's, as they may without guaranteed bits; empty otherwise."""


async def inherit(
    log: EventLog,
    forked: ExperimentForked,
    engine: TrainerEngine,
    *,
    thread: Executor,
    clock: Clock,
    carry_on: Callable[[], Awaitable[bool]],
) -> Inherited | None:
    """Brings the engine to the version shared with the parent, with its weights and optimizer, under the parent's
    specification.

    `carry_on` is awaited before each step; if it returns False, `inherit` returns None. Raises DataError and
    LogLossError if the parent's files or records are missing, TrainError if a deterministic engine computes other
    weights in an equal environment.
    """
    record = await read_record(log, forked.parent, clock=clock)
    rerun = Rerun(log, record, engine, thread=thread)
    resumption = await rerun.take_up(at_most=forked.at_step)
    while rerun.version < forked.at_step:
        if not await carry_on():
            return None
        await rerun.step(rerun.version + 1)
    inherited = Inherited(
        checksum=await rerun.checksum(like=forked.checksum),
        checkpoint=resumption.checkpoint.path if resumption.checkpoint else "",
        reason=resumption.reason,
    )
    if inherited.checksum == forked.checksum:
        return inherited
    different = (
        f"step {forked.at_step} has checksum {inherited.checksum} here, {forked.checksum} in the parent's history"
    )
    changes = _changes(record, engine)
    # With promised bits, other weights mean that the parent's files were changed; otherwise they only deserve a
    # warning.
    if engine.deterministic and not changes:
        raise TrainError(
            different,
            where=inherited.checkpoint or None,
            fix="restore the parent's checkpoints and artifacts, and see `rftd verify`; then fork again",
        )
    why = "; ".join(map(str, changes))
    return msgspec.structs.replace(inherited, warning=f"{different}: {why or 'its engine is not deterministic'}")


def _changes(record: TrainingRecord, engine: TrainerEngine) -> tuple[Drift, ...]:
    """Returns the differences from the environment of the parent's last generation."""
    newest = max(record.generations, default=None)
    spec = record.state.spine.spec
    if newest is None or spec is None:
        return ()
    return drift(newest, record.generations[newest].environment, environment_of(engine, spec))
