"""Replay: executes an experiment's training again from the log alone, and compares the weights of each step with the
record.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import msgspec

from rftd.ops.clock import Clock
from rftd.ops.errors import ConflictError, NotFoundError, UsageError
from rftd.storage.files.checkpoints import commit_folder
from rftd.streams.log.log import EventLog
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.datasets.stage_tokenizer import place_template
from rftd.workers.learning.engine import TrainerEngine
from rftd.workers.learning.engine_registry import make_engine
from rftd.workers.training.environment import Drift, environment_of
from rftd.workers.training.extensions import check_extensions
from rftd.workers.training.record import TrainingRecord, read_record
from rftd.workers.training.rerun import Compared, Rerun


class ReplayOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a replay: which steps, from where, and how strictly differences are treated."""

    to_step: int | None = None
    """Last weight version to compute; None for the last one ever trained."""
    from_checkpoint: bool = False
    """True to start from the newest valid checkpoint below `to_step`; False to start from the base model."""
    stop_at_difference: bool = False
    """True to end at the first step with other weights than recorded."""
    allow_drift: bool = False
    """True to continue although libraries or machine differ from the recorded ones."""
    into: Path | None = None
    """New folder for the last weights, in a checkpoint's layout; None to write nothing."""


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """Start of a replay: weight version, checkpoint, and differences of the environment."""

    version: int
    """Weight version loaded before the first step."""
    checkpoint: str
    """Folder of the checkpoint; empty for the base model."""
    reason: str
    """Why a newer checkpoint was not used; empty if the newest was."""
    last: int
    """Last step to be executed."""
    drift: tuple[Drift, ...]
    """Differences between the recorded environments and the present one."""
    deterministic: bool
    """True if the engine guarantees equal digests in an equal environment."""


class ReplayOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Number of steps executed by a replay, steps with other weights than recorded, and durations."""

    steps: int
    """Number of steps executed again."""
    digests: int
    """Number of steps whose recorded sha256 was compared too."""
    different: tuple[Compared, ...]
    """Steps with other weights than recorded."""
    duration_s: float
    """Seconds of the steps, without reading the log and loading the model."""
    recorded_duration_s: float
    """Seconds of the same steps as originally trained."""


async def replay(
    log: EventLog,
    experiment: UUID,
    order: ReplayOrder,
    *,
    clock: Clock,
    on_begin: Callable[[Beginning], None],
    on_step: Callable[[Compared], None],
) -> ReplayOutcome:
    """Executes the plans again, and calls `on_step` with each compared step; appends nothing.

    `on_begin` is called once before the first step. Raises NotFoundError if nothing was ever trained, UsageError for
    steps that do not exist, ConflictError for drift not allowed, ConfigError for a missing plug-in, and the errors of
    training.
    """
    record = await read_record(log, experiment, clock=clock)
    spec = record.state.spine.spec
    surviving = record.surviving()
    if spec is None or not surviving:
        raise NotFoundError("no step of this experiment was ever executed, so there is nothing to replay")
    last = max(surviving) if order.to_step is None else order.to_step
    first = min(surviving)
    if not first <= last <= max(surviving):
        fix = f"executed were {first} to {max(surviving)}" + ("; replay its parent for the others" * (first > 1))
        raise UsageError(f"this experiment executed no step {last} itself", field="--to-step", fix=fix)
    if order.into is not None and order.into.exists():
        raise UsageError(f"{order.into} exists", field="--into", fix="name a new folder")
    # Before the engine is made: a missing part would fail in the middle of hours of replay.
    check_plugins(record)
    engine = make_engine(spec.stages[0].trainer, spec.reach)
    # One thread, as in training: calls of the engine never overlap, and OpenMP counts threads for the calling thread.
    with ThreadPoolExecutor(1, thread_name_prefix="engine") as thread:
        rerun = Rerun(log, record, engine, thread=thread)
        try:
            on_begin(await _begin_rerun(rerun, engine, spec, last, order))
            outcome = await _execute_steps(rerun, last, order, clock, on_step)
            if (into := order.into) is not None:

                def fill(folder: Path) -> None:
                    engine.save(folder, hf=True)
                    place_template(folder, spec.stages[surviving[rerun.version].stage])

                await rerun.call(lambda: commit_folder(into, fill))
            return outcome
        finally:
            await rerun.call(engine.close)


def check_plugins(record: TrainingRecord | None) -> None:
    """Raises ConfigError for a missing third-party plug-in of this experiment or of its ancestors."""
    while record is not None and record.state.spine.spec is not None:
        newest = max(record.generations, default=None)
        recorded = {} if newest is None else record.generations[newest].environment
        check_extensions(record.state.spine.spec, recorded)
        record = record.parent


async def _begin_rerun(
    rerun: Rerun, engine: TrainerEngine, spec: ExperimentSpec, last: int, order: ReplayOrder
) -> Beginning:
    """Loads the first weights of the replay; returns its beginning. Raises ConflictError for drift not allowed."""
    resumption = await rerun.take_up(at_most=last - 1 if order.from_checkpoint else 0)
    drift = rerun.drift(environment_of(engine, spec), last)
    if drift and not order.allow_drift:
        raise ConflictError(
            f"this is not where it was trained: {'; '.join(map(str, drift))}",
            fix="replay where these are equal, or add --allow-drift: digests may then differ",
        )
    return Beginning(
        version=rerun.version,
        checkpoint=resumption.checkpoint.path if resumption.checkpoint else "",
        reason=resumption.reason,
        last=last,
        drift=drift,
        deterministic=engine.deterministic,
    )


async def _execute_steps(
    rerun: Rerun, last: int, order: ReplayOrder, clock: Clock, on_step: Callable[[Compared], None]
) -> ReplayOutcome:
    """Executes and compares the steps up to `last`, or up to the first difference if so ordered."""
    began_s = clock.monotonic_s()
    compared: list[Compared] = []
    while rerun.version < last:
        compared.append(await rerun.step(rerun.version + 1))
        on_step(compared[-1])
        if order.stop_at_difference and not compared[-1].equal:
            break
    return ReplayOutcome(
        steps=len(compared),
        digests=sum(comparison.recorded_sha256 is not None for comparison in compared),
        different=tuple(comparison for comparison in compared if not comparison.equal),
        duration_s=clock.monotonic_s() - began_s,
        recorded_duration_s=sum(comparison.recorded_duration_s for comparison in compared),
    )
