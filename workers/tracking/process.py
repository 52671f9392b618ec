"""`run_tracker`: the work of a tracker's process, from arguments to follower."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec

from rftd.ops import faults
from rftd.ops.clock import Clock
from rftd.ops.errors import ConfigError, ConflictError, NotFoundError, NotInstalledError, explain
from rftd.ops.logs import Logger
from rftd.ops.outbound import web_address
from rftd.streams.log.log import EventLog
from rftd.streams.log.start import ExperimentStart, beginning_of
from rftd.streams.spec.engines import ReachSpec
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.spec.stage_parts import TrackerSpec
from rftd.workers.tracking.addresses import check_addresses
from rftd.workers.tracking.cursor import MONITOR, CursorFile
from rftd.workers.tracking.following import TrackerFollower
from rftd.workers.tracking.point import TrackedRun
from rftd.workers.tracking.points import PointFold
from rftd.workers.tracking.registry import TRACKERS, variables_of
from rftd.workers.tracking.samples import SampleReader
from rftd.workers.tracking.tracker import Opening

_ADDRESSES: Final = ("base_url", "uri")
"""The arguments with a tracker's destination address."""
_CREDENTIALS: Final = ("KEY", "USERNAME", "PASSWORD", "TOKEN")
"""Suffixes of variables that a tracker sends to that address by itself."""


def check_tracker_reach(
    reach: ReachSpec, tracker: TrackerSpec, args: Mapping[str, Any], variables: Collection[str]
) -> None:
    """Raises ConfigError unless the address in `args`, if any, is allowed, together with every key sent there.

    `variables` are the names of existing variables. The error contains neither the address nor a value.
    """
    if not reach.restricted:
        return
    for name in _ADDRESSES:
        if name not in args:
            continue
        field = f"monitor.monitor_args.{name}"
        variable = tracker.variables.get(name, "")
        try:
            reach.check(str(args[name]), field=field, variable=variable)
            address = web_address(str(args[name]), field=field)
        except ConfigError:
            raise _withheld(tracker, variable or "its address", field) from None
        for key in _keys(tracker, variables):
            if not reach.may_send(key, address):
                raise _withheld(tracker, key, field)


def _keys(tracker: TrackerSpec, variables: Collection[str]) -> list[str]:
    """Returns the variables sent by the tracker: variables of arguments, and variables read automatically."""
    argument_variables = [variable for name, variable in tracker.variables.items() if name not in _ADDRESSES]
    read_variables = [name for name in variables_of(tracker.kind) if name.endswith(_CREDENTIALS) and name in variables]
    return [*argument_variables, *read_variables]


def _withheld(tracker: TrackerSpec, secret: str, field: str) -> ConfigError:
    """Returns the error for a secret that must not be sent."""
    return ConfigError(
        f"the daemon's configuration does not allow the tracker {tracker.kind!r} to send {secret} to this address",
        field=field,
        fix="ask the daemon's owner for the line `secrets: {NAME: [HOST]}`, with the host, in its configuration",
    )


async def run_tracker(
    log: EventLog,
    experiment: UUID,
    tracker_spec: TrackerSpec | str,
    *,
    stop: asyncio.Event,
    clock: Clock,
    logger: Logger,
    environ: Mapping[str, str],
    spine_offset: int = 0,
    until_head: bool = False,
    into: Path | None = None,
    patient: bool = True,
    point: Callable[[str], None] = faults.point,
) -> int:
    """Follows an experiment with a tracker until its end, or until `stop` is set; returns the total number of points.

    `tracker_spec` is the tracker, or its kind in the experiment's specification; `into` replaces the job's folder.
    Raises NotFoundError for an unknown kind or a missing job folder, ConflictError if another process runs the tracker,
    or if it was begun with other arguments, ConfigError for unsupported arguments.
    """
    beginning = await beginning_of(log, experiment, spine_offset=spine_offset)
    spec = beginning.spec
    tracked = tracker_spec if isinstance(tracker_spec, TrackerSpec) else _of_kind(spec, tracker_spec)
    run = run_of(experiment, spec, single_run=tracked.single_run)
    root = Path(spec.job_dir) if into is None else into
    if into is None and not root.is_dir():
        raise NotFoundError(
            f"the folder of {spec.name} is not here", where=str(root), fix="name another: --into FOLDER"
        )
    file = CursorFile(root, tracked.kind, run.short_id)
    await asyncio.to_thread(file.take)
    try:
        cursor = await asyncio.to_thread(file.read)
        target = _target(tracked)
        if cursor.target not in ("", target):
            message = f"the tracker {tracked.kind!r} of {spec.name} was begun with other arguments"
            raise ConflictError(message, where=str(file.path), fix="give the same, or another folder: --into FOLDER")
        cursor = msgspec.structs.replace(cursor, target=target)
        _set_options(cursor.fold, tracked)
        if cursor.ended:
            return cursor.fold.next_number
        args = {**tracked.args, **_values(tracked, environ)}
        if isinstance(tracker_spec, str):  # the experiment's own tracker, not one added by the owner
            check_tracker_reach(spec.reach, tracked, args, environ.keys())
        check_addresses(tracked.kind, args, tracked.variables, environ)
        folder = root / MONITOR / tracked.kind
        tracker = TRACKERS.load(tracked.kind)(Opening(run=run, folder=folder, args=args))
        follower = TrackerFollower(
            log,
            tracker,
            file,
            cursor,
            experiment=experiment,
            positions=beginning.positions,
            clock=clock,
            logger=logger,
            stop=stop,
            samples=_samples(log, beginning, tracked, logger) if tracked.samples else None,
            patient=patient,
            point=point,
        )
        await follower.run(until_head=until_head)
        return (await asyncio.to_thread(file.read)).fold.next_number
    except (ConfigError, NotInstalledError) as error:
        await asyncio.to_thread(_note, file, explain(error))
        raise
    finally:
        file.release()


async def stop_when_orphaned(stop: asyncio.Event, clock: Clock) -> None:
    """Sets `stop` once the parent process has ended."""
    parent = os.getppid()
    while os.getppid() == parent:
        await clock.sleep(1.0)
    stop.set()


def run_of(experiment: UUID, spec: ExperimentSpec, *, single_run: bool) -> TrackedRun:
    """Returns the experiment's description for trackers."""
    return TrackedRun(
        experiment=str(experiment),
        project=spec.project,
        group=spec.group or spec.name,
        name=spec.name,
        job_dir=spec.job_dir,
        config=spec.config,
        digest=hashlib.sha256(msgspec.json.encode(spec.config, order="sorted")).hexdigest(),
        single_run=single_run,
    )


def _set_options(fold: PointFold, tracked: TrackerSpec) -> None:
    """Sets the fold's options to the tracker's."""
    fold.single_run = tracked.single_run
    fold.samples = tracked.samples
    fold.sample_interval = tracked.sample_interval


def _samples(log: EventLog, beginning: ExperimentStart, tracked: TrackerSpec, logger: Logger) -> SampleReader:
    """Returns the reader of the sample tables' rows."""
    spec = beginning.spec
    return SampleReader(
        log, spec, tracked.samples, folder=Path(spec.job_dir), starts=beginning.positions, logger=logger
    )


def _note(file: CursorFile, reason: str) -> None:
    """Stores the reason of the tracker's end in the cursor, where `rftd get` finds it. Blocks."""
    with suppress(OSError):
        file.write(msgspec.structs.replace(file.read(), error=reason))


def _of_kind(spec: ExperimentSpec, kind: str) -> TrackerSpec:
    """Returns the specification's tracker of a kind. Raises NotFoundError without one."""
    for tracker in spec.trackers:
        if tracker.kind == kind:
            return tracker
    raise NotFoundError(f"{spec.name} has no tracker {kind!r}", fix="see monitor in rftd config show")


def _target(tracker: TrackerSpec) -> str:
    """Returns the digest of the arguments that decide where a tracker writes."""
    encoded = msgspec.json.encode([tracker.args, tracker.single_run, tracker.samples], order="sorted")
    return hashlib.sha256(encoded).hexdigest()


def _values(tracker: TrackerSpec, environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns the arguments taken from environment variables."""
    missing = [name for name in tracker.variables.values() if name not in environ]
    if missing:
        raise ConfigError(
            f"the tracker {tracker.kind!r} needs {missing[0]}, which the daemon's environment does not have",
            fix=f"export {missing[0]} and start the daemon again",
        )
    return {argument: environ[name] for argument, name in tracker.variables.items()}
