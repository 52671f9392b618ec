"""`mode: serve`: a stage whose tasks are conversations that clients hold with its explorers over HTTP."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import PurePosixPath
from typing import Final

import msgspec

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Notes, Unsupported
from rftd.daemon.config.resolve.model import LengthLimits
from rftd.daemon.config.resolve.tasksets import conversation_taskset
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import as_section
from rftd.streams.log.bounds import LAST_INDEX
from rftd.streams.spec.reach import ServingSpec
from rftd.streams.spec.spec import StageSpec, TasksetSpec

SERVE: Final = "serve"
_EXPLORER: Final[FieldPath] = ("explorer",)
_PACED: Final = {"sync_style": "fully_async", "explorer_sync_interval": None, "sync_offset": 0}
"""Clients come when they like, so explorers never wait for weights: they take the newest as they are published."""
_PATIENCE_S: Final = 1e9
"""A batch is planned when it is full, however long clients take, unless the file says otherwise."""


def as_served(experiment: Experiment, notes: Notes) -> Experiment:
    """The experiment with the schedule that serving needs."""
    given = as_section(experiment.synchronizer)
    for name, value in _PACED.items():
        if name in given.model_fields_set and (asked := getattr(given, name)) not in (value, None):
            notes.warn(f"mode serve: synchronizer.{name} {asked} becomes {value}: explorers never wait for weights")
    if not experiment.explorer.collect_only and not (experiment.buffer.total_steps or experiment.trainer.total_steps):
        what = "is required: conversations have no end after which one could count"
        notes.wrong(
            ("buffer", "total_steps"), what, "say after how many steps it ends, or write explorer.collect_only: true"
        )
    # model_copy does not validate: the values are ours, and None stands for fields that were not given.
    return experiment.model_copy(update={"synchronizer": given.model_copy(update=_PACED)})


def conversations(
    experiment: Experiment, lengths: LengthLimits, repeat_times: int, folder: str, notes: Notes
) -> TasksetSpec:
    """The taskset that is filled while the stage runs: row n is the n-th group of conversations that was committed."""
    taskset = conversation_taskset(experiment, lengths, repeat_times, notes)
    return msgspec.structs.replace(taskset, path=str(PurePosixPath(folder, "serving")), rows=LAST_INDEX)


def with_server(stage: StageSpec, experiment: Experiment, notes: Notes) -> StageSpec:
    """The stage with its server."""
    given = experiment.explorer
    engines = stage.rollout.explorers
    if given.min_running_model_num > engines:
        what = f"is {given.min_running_model_num}, and there are {engines} engines (rollout_model.engine_num)"
        notes.wrong((*_EXPLORER, "min_running_model_num"), what, f"write at most {engines}")
    if engines > 1 and given.proxy_port == 0:
        what = f"is 0, and {engines} engines share one port"
        notes.wrong((*_EXPLORER, "proxy_port"), what, "name a port")
    if given.proxy_port > 65535:
        notes.wrong((*_EXPLORER, "proxy_port"), f"is {given.proxy_port}, beyond the last port", "write at most 65535")
    try:
        ip_address(given.listen_address)
    except ValueError:
        what = f"is {given.listen_address!r}, which is no IP address"
        notes.wrong((*_EXPLORER, "listen_address"), what, "write 127.0.0.1, or 0.0.0.0 for every interface")
    if given.concurrent_mode == "multi-threading":
        what = "has no effect with mode serve: there is no workflow"
        notes.wrong((*_EXPLORER, "concurrent_mode"), what, "leave it out", Unsupported)
    # What clients drew with weights of yesterday is still theirs: only a file that names a policy gives it up.
    policy = stage.policy
    if experiment.policy is None and policy.max_uses == 1:
        policy = msgspec.structs.replace(policy, bounded=False)
    return msgspec.structs.replace(
        stage,
        serving=ServingSpec(address=given.listen_address, port=given.proxy_port),
        collect_groups=stage.collect_groups or (LAST_INDEX if stage.kind == "explore" else 0),
        max_read_timeout_s=_patience_s(experiment),
        policy=policy,
    )


def with_queue(stage: StageSpec, experiment: Experiment) -> StageSpec:
    """The stage, which waits for tasks as long as it takes unless the file says otherwise."""
    return msgspec.structs.replace(stage, max_read_timeout_s=_patience_s(experiment))


def _patience_s(experiment: Experiment) -> float:
    waits = experiment.buffer.trainer_input.experience_buffer
    return waits.max_read_timeout if "max_read_timeout" in waits.model_fields_set else _PATIENCE_S
