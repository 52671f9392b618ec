"""The terms of a step's objective at each token, recomputed by a replay up to the step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np
from numpy.typing import NDArray

from rftd.ops.clock import Clock
from rftd.ops.errors import ConfigError, DataError, NotFoundError
from rftd.streams.log.log import EventLog
from rftd.workers.learning.engine import ExplainingEngine, TrainerEngine
from rftd.workers.learning.engine_registry import make_engine
from rftd.workers.training.environment import environment_of
from rftd.workers.training.record import TrainingRecord, read_record
from rftd.workers.training.replay import check_plugins
from rftd.workers.training.rerun import ExplainedStep, Rerun
from rftd.workers.training.terms_file import StepTerms, write_terms


class TermsProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a replay towards a step."""

    version: int
    """Present weight version."""
    step: int
    """Step to be explained."""


async def recompute_terms(
    log: EventLog, experiment: UUID, step: int, into: Path, *, clock: Clock, report: Callable[[TermsProgress], None]
) -> None:
    """Replays an experiment up to a step from the newest good checkpoint below, and writes the step's terms `into` a
    file.

    Appends nothing. Raises NotFoundError for a step never executed here, ConfigError for an engine without terms,
    DataError for dropped payloads or too many tokens, and the errors of training.
    """
    record = await read_record(log, experiment, clock=clock)
    spec = record.state.spine.spec
    surviving = record.surviving()
    if spec is None or step not in surviving:
        raise NotFoundError(f"this experiment executed no step {step} itself", fix="a fork's first steps: its parent's")
    check_plugins(record)
    engine = make_engine(spec.stages[0].trainer, spec.reach)
    with ThreadPoolExecutor(1, thread_name_prefix="engine") as thread:
        rerun = Rerun(log, record, engine, thread=thread)
        try:
            if not isinstance(engine, ExplainingEngine):
                raise ConfigError(
                    f"this experiment's trainer {spec.stages[0].trainer.engine!r} does not record loss terms of tokens",
                    fix="they are recomputed for the trainers torch and verl, of one rank",
                )
            resumption = await rerun.take_up(at_most=step - 1)
            from_version = rerun.version
            _check_payloads(record, from_version, resumption.reason)
            while rerun.version < step - 1:
                report(TermsProgress(version=rerun.version, step=step))
                await rerun.step(rerun.version + 1)
            report(TermsProgress(version=rerun.version, step=step))
            explained = await rerun.explain(step)
            notes = _notes(rerun, engine, record, explained, step)
        finally:
            await rerun.call(engine.close)
    terms = StepTerms(
        step=step,
        from_version=from_version,
        equal=explained.compared.equal,
        notes=notes,
        experiences=_of_experiences(explained),
    )
    await asyncio.to_thread(write_terms, into, terms)


def _check_payloads(record: TrainingRecord, from_version: int, reason: str) -> None:
    """Raises DataError if a step to be executed again lost its payloads to the keeping rules."""
    dropped = record.state.spine.payloads_dropped_through
    if from_version < dropped:
        passed = f" ({reason})" if reason else ""
        raise DataError(
            f"tokens of steps up to {dropped} were dropped by the keeping rules, and the newest good checkpoint below "
            f"the step is of step {from_version}{passed}",
            fix="choose a step behind a later checkpoint, or start the daemon with --payloads always for later runs",
        )


def _notes(
    rerun: Rerun, engine: TrainerEngine, record: TrainingRecord, explained: ExplainedStep, step: int
) -> tuple[str, ...]:
    """Returns remarks on the numbers: other weights than recorded, several optimizer steps, a skipped step."""
    spec = record.state.spine.spec
    assert spec is not None
    notes: list[str] = []
    if not explained.compared.equal:
        drift = "; ".join(map(str, rerun.drift(environment_of(engine, spec), step)))
        notes.append(f"the replay's weights differ from the recorded ones{': ' + drift if drift else ''}")
    updates = spec.stages[explained.plan.stage].trainer.updates
    if updates.epochs > 1 or 0 < updates.mini_batch_items < len(explained.batch.items):
        notes.append("the batch was trained in several optimizer steps: each token by the weights before its first one")
    if not any(explained.notes.columns):
        notes.append("no token of the step was trained")
    return tuple(notes)


def _of_experiences(explained: ExplainedStep) -> dict[str, dict[str, NDArray[np.float32]]]:
    """Returns the columns of each planned experience, its turns one after the other."""
    batch = explained.batch
    terms: dict[str, dict[str, NDArray[np.float32]]] = {}
    first = 0
    for planned, count in zip(explained.plan.experiences, batch.items, strict=False):
        numbers = range(first, first + count)
        first += count
        # The trainer put rollouts of another group in the place of this one, such as those of a group without spread.
        if any(batch.samples[number].group != planned.group for number in numbers):
            continue
        of_turns = [explained.notes.columns[number] for number in numbers]
        names = sorted({name for columns in of_turns for name in columns})
        lengths = [len(batch.samples[number].loss_mask) for number in numbers]
        terms[str(planned.experience)] = {
            name: np.concatenate(
                [
                    columns.get(name, np.full(length, np.nan, np.float32))
                    for columns, length in zip(of_turns, lengths, strict=True)
                ]
            )
            for name in names
        }
    return terms
