"""`continue_from_checkpoint`: an experiment continues from the last step of the experiment ended in its folder.

A continuation is a fork at the last trained step of the newest experiment ended there, with the new file's
specification. It gets a folder beside the submitted one, with a time stamp in the name: each folder has one owner,
whatever is archived, removed or tidied. Resubmitted, the same file continues from the continuation.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable

import msgspec

from rftd.daemon.run.registry import Entry
from rftd.daemon.run.supervisor.forking import check_parent, check_payloads, continued_spec, evaluated
from rftd.ops.clock import iso
from rftd.ops.errors import ConfigError, ConflictError
from rftd.streams.events.experiment import ExperimentForked
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.log import EventLog
from rftd.streams.log.shared_history import fold_until, shared_history
from rftd.streams.log.topics import partition_of
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.devices.host import Host


def earlier(experiments: Iterable[Entry], spec: ExperimentSpec) -> list[Entry]:
    """Returns the experiments with the specification's folder, oldest first; empty unless `continue_from_checkpoint` is
    set.
    """
    if spec.half != "both" or not _continues(spec) or is_bench(spec):
        return []
    return of_folder(experiments, spec)


def of_folder(experiments: Iterable[Entry], spec: ExperimentSpec) -> list[Entry]:
    """Returns the experiments with the specification's folder, and those continuing them, oldest first."""
    beside = re.compile(re.escape(spec.job_dir) + r"_\d{14}(-\d+)?")
    owners = [
        experiment
        for experiment in experiments
        if experiment.status is not Status.REJECTED
        and (
            experiment.job_dir == spec.job_dir or (beside.fullmatch(experiment.job_dir) and _continues(experiment.spec))
        )
    ]
    return sorted(owners, key=lambda entry: entry.submitted_ns)


async def continued(
    log: EventLog, parent: Entry, spec: ExperimentSpec, host: Host
) -> tuple[ExperimentSpec, ExperimentForked | None]:
    """Returns the specification continuing from `parent` with workers on `host`, and the fork event.

    The event is None if `parent` trained nothing.

    Raises ConfigError if the specification cannot continue from there, ConflictError if none can.
    """
    state = RunState(parent.id)
    home = partition_of(topics.EXPERIMENTS, parent.id)
    heads = await log.heads()
    await fold_until(log, state, parent.id, {home: heads[home].next_offset})
    at_step = state.spine.furthest
    if at_step == 0:
        return _with_warning(spec, f"{parent.name} ended before its first step, so this begins at the base model"), None
    shared = await shared_history(log, parent.id, at_step)
    check_payloads(parent.name, shared.spine, at_step)
    spec = await asyncio.to_thread(continued_spec, spec, shared, host)
    spec = _with_warning(
        spec, f"continue_from_checkpoint: continues from step {at_step} of {parent.name}, in {spec.job_dir}"
    )
    return spec, msgspec.structs.replace(shared.forked, evaluated=evaluated(spec, shared))


async def based(
    log: EventLog, base: Entry, spec: ExperimentSpec, host: Host
) -> tuple[ExperimentSpec, ExperimentForked | None]:
    """Returns the specification as a fork of `base` at step 0, sharing the evaluations of the first weights, and the
    fork event.

    The event is None, and the specification unchanged, if `base` has not evaluated every held-out taskset or no fork is
    possible.
    """
    try:
        check_parent(base.name, base.spine)
        shared = await shared_history(log, base.id, 0)
        forked_spec = await asyncio.to_thread(continued_spec, spec, shared, host)
    except (ConfigError, ConflictError):
        return spec, None
    evaluated_tasksets = evaluated(forked_spec, shared)
    if len(evaluated_tasksets) < len(forked_spec.stages[0].evals):
        return spec, None
    return forked_spec, msgspec.structs.replace(shared.forked, evaluated=evaluated_tasksets)


def is_bench(spec: ExperimentSpec) -> bool:
    """True if the experiment evaluates a model and trains nothing."""
    return len(spec.stages) == 1 and spec.stages[0].kind == "explore" and spec.stages[0].taskset is None


def stamped(name: str, now_ns: int) -> str:
    """Returns the name with a time stamp in Trinity-RFT's format appended."""
    stamp = iso(now_ns)[:19].translate(str.maketrans("", "", "-:T"))
    return f"{name}_{stamp}"


def _continues(spec: ExperimentSpec) -> bool:
    """True if the experiment's file allows a continuation from checkpoints, as it does by default."""
    return bool(spec.config.get("continue_from_checkpoint", True))


def _with_warning(spec: ExperimentSpec, text: str) -> ExperimentSpec:
    """Returns the specification with one more warning."""
    return msgspec.structs.replace(spec, warnings=(*spec.warnings, text))
