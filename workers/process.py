"""A worker process around its loop: finds the experiment, joins, works, and announces the reason of the end."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

from rftd.ops.clock import Clock
from rftd.ops.errors import DiskFullError, LogLossError, RftdError, UnreachableError, WorkError, explain
from rftd.ops.ids import Ids
from rftd.ops.logs import Logger
from rftd.ops.own_folder import close_folder
from rftd.ops.tracing.tracer import Tracer
from rftd.storage.files.resume import resumed_follower
from rftd.streams.folds.run_state import RunState, SpineParts
from rftd.streams.folds.snapshot import Snapshot
from rftd.streams.log import topics
from rftd.streams.log.decision import slot_partition
from rftd.streams.log.follower import Follower
from rftd.streams.log.log import EventLog
from rftd.streams.log.start import beginning_of
from rftd.streams.log.topics import Partition, partition_of
from rftd.workers.hosts.membership import Membership, ProcessName

WORKERS = Partition(topics.WORKERS, 0)
"""The partition with the events of workers."""


async def run_explorer(
    log: EventLog,
    experiment: UUID,
    slot: int,
    stop: asyncio.Event,
    *,
    clock: Clock,
    ids: Ids,
    logger: Logger,
    spine_offset: int = 0,
    worker: UUID | None = None,
    process: ProcessName | None = None,
    tracer: Tracer | None = None,
) -> None:
    """Explores until the experiment ends or `stop` is set. Raises the final error, after announcing it.

    `worker` is the ordered id; None: not ordered. Without a `tracer` nothing is traced.
    """
    # Each role imports only the own half of the workers, and starts faster.
    from rftd.workers.rollout.explorer import Explorer
    from rftd.workers.rollout.view import ExplorerParts, ExplorerView

    member = Membership(
        log,
        experiment=experiment,
        role="explorer",
        slot=slot,
        clock=clock,
        ids=ids,
        id=worker,
        process=process,
        tracer=tracer,
    )
    view = ExplorerView(member.id)
    heads = await log.heads()
    # From the end: an explorer needs only workers coming and going from now on.
    workers = {WORKERS: heads[WORKERS].next_offset if WORKERS in heads else 0}
    spine, weights = (partition_of(stream, experiment) for stream in (topics.EXPERIMENTS, topics.WEIGHTS))
    beginning = await beginning_of(log, experiment, spine_offset=spine_offset)
    # Offers are among the experiences: a serving explorer must know the promised rows.
    serves = any(stage.serving is not None for stage in beginning.spec.stages)
    offers = [partition_of(topics.EXPERIENCES, experiment)] if serves else []
    follower = await resumed_follower(
        log,
        view,
        beginning,
        experiment=experiment,
        # Earlier leases of the slot name other workers, but the fences among them decide whose leases count from now
        # on.
        partitions=[spine, weights, slot_partition(slot), *offers],
        adopt=view.adopt,
        kind=Snapshot[ExplorerParts],
        also=workers,
        clock=clock,
        logger=logger,
    )
    explorer = Explorer(member, follower, view, logger)
    await _announced(member, follower, lambda: explorer.run(stop), logger, job_dir=beginning.spec.job_dir)


async def run_trainer(
    log: EventLog,
    experiment: UUID,
    stop: asyncio.Event,
    *,
    clock: Clock,
    ids: Ids,
    logger: Logger,
    spine_offset: int = 0,
    worker: UUID | None = None,
    process: ProcessName | None = None,
    tracer: Tracer | None = None,
) -> None:
    """Trains until the experiment ends or `stop` is set. Raises the final error, after announcing it.

    `worker` is the ordered id; None: not ordered. Without a `tracer` nothing is traced.
    """
    from rftd.workers.learning.engine_registry import make_engine
    from rftd.workers.training.trainer import Trainer
    from rftd.workers.training.training_traces import PlanTraces

    member = Membership(
        log,
        experiment=experiment,
        role="trainer",
        slot=-1,
        clock=clock,
        ids=ids,
        id=worker,
        process=process,
        tracer=tracer,
    )
    state = RunState(experiment, spine_only=True)
    plans = None if tracer is None else PlanTraces(state)
    streams = (topics.EXPERIMENTS, topics.WEIGHTS, topics.CHECKPOINTS)
    beginning = await beginning_of(log, experiment, spine_offset=spine_offset)
    submitted = beginning.positions[partition_of(topics.EXPERIMENTS, experiment)]
    follower = await resumed_follower(
        log,
        state if plans is None else plans,
        beginning,
        experiment=experiment,
        partitions=[partition_of(stream, experiment) for stream in streams],
        adopt=state.adopt,
        kind=Snapshot[SpineParts],
        clock=clock,
        logger=logger,
    )
    await follower.catch_up()
    assert state.spine.spec is not None
    spec = state.spine.spec
    engine = make_engine(spec.stages[0].trainer, spec.reach)
    with ThreadPoolExecutor(1, thread_name_prefix="engine") as thread:
        trainer = Trainer(member, follower, state, engine, thread=thread, log=logger, submitted=submitted, plans=plans)
        await _announced(member, follower, lambda: trainer.run(stop), logger, job_dir=beginning.spec.job_dir)


async def _announced(
    member: Membership, follower: Follower, work: Callable[[], Awaitable[None]], logger: Logger, *, job_dir: str
) -> None:
    """Runs the work, and announces the end, clean or not, if the log is still reachable."""
    error: RftdError | None = None
    # Another program may have opened the folder to all users.
    await asyncio.to_thread(close_folder, Path(job_dir))
    try:
        await work()
    # First: without the log nothing can be announced, and trying would hide the reason behind another error.
    except* UnreachableError as unreachable:
        error = _first(unreachable)
        logger.error("log.unreachable", reason=explain(error))
        raise error from None
    except* RftdError as failures:
        error = _first(failures)
    except* Exception as failures:
        error = _as_error(_first_any(failures), member.source)
        logger.error("worker.crashed", exc_info=_first_any(failures))
    finally:
        await follower.close()
    # Stored in the job's folder: a log with lost records may lose the announcement too.
    if isinstance(error, LogLossError):
        from rftd.storage.files.survivors import leave_word  # it imports the tables, and is slow to import

        who = f"{member.role}-{max(member.slot, 0)}"
        await asyncio.to_thread(leave_word, job_dir, who, follower.marks())
    await member.leave(error)
    if error is not None:
        logger.error("worker.failed", code=error.code, reason=explain(error))
        raise error


def _as_error(failure: BaseException, where: str) -> RftdError:
    # The writer of safetensors provides no errno, only the text.
    no_space = isinstance(failure, OSError) and failure.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if no_space or f"(os error {errno.ENOSPC})" in str(failure):
        return DiskFullError(explain(failure), where=where, fix="free space; the experiment continues by itself")
    return WorkError(explain(failure), where=where)


def _first(group: BaseExceptionGroup[RftdError]) -> RftdError:
    error = _first_any(group)
    assert isinstance(error, RftdError)
    return error


def _first_any(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = group
    # Task groups nest; the first leaf happened first, and cancelled the others.
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
