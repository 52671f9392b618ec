"""`mode: serve`: a stage whose tasks are clients' conversations with the explorers over HTTP."""

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
from rftd.streams.spec.engines import ServingSpec
from rftd.streams.spec.spec import StageSpec, TasksetSpec

SERVE: Final = "serve"
"""Name of the mode."""
_EXPLORER: Final[FieldPath] = ("explorer",)
"""Section of the explorers."""
_PACED: Final = {"sync_style": "fully_async", "explorer_sync_interval": None, "sync_offset": 0}
"""Clients arrive at any time, so explorers never wait for weights: new versions are loaded when published."""
_PATIENCE_S: Final = 1e9
"""A batch is planned only when full, no matter how long clients take, unless the file sets a time-out."""


def as_served(experiment: Experiment, notes: Notes) -> Experiment:
    """Returns the experiment of `mode: serve`, with a schedule in which explorers never wait for weights."""
    sync = as_section(experiment.synchronizer)
    for name, required in _PACED.items():
        if name in sync.model_fields_set and (requested := getattr(sync, name)) not in (required, None):
            notes.warn(
                f"mode serve: synchronizer.{name} {requested} becomes {required}: explorers never wait for weights"
            )
    if not experiment.explorer.collect_only and not (experiment.buffer.total_steps or experiment.trainer.total_steps):
        problem = "is required: the number of conversations is not known in advance"
        notes.wrong(("buffer", "total_steps"), problem, "set the number of steps, or write explorer.collect_only: true")
    # model_copy does not validate: the values are constants of this module, and None stands for unset fields.
    return experiment.model_copy(update={"synchronizer": sync.model_copy(update=_PACED)})


def conversations(
    experiment: Experiment, lengths: LengthLimits, repeat_times: int, folder: str, notes: Notes
) -> TasksetSpec:
    """Returns a taskset whose row n is the n-th committed group of conversations, filled while the stage runs."""
    taskset = conversation_taskset(experiment, lengths, repeat_times, notes)
    return msgspec.structs.replace(taskset, path=str(PurePosixPath(folder, "serving")), rows=LAST_INDEX)


def with_server(stage: StageSpec, experiment: Experiment, notes: Notes) -> StageSpec:
    """Returns the stage with an HTTP server for clients; without a policy in the file, staleness is not limited."""
    section = experiment.explorer
    engines = stage.rollout.explorers
    if section.min_running_model_num > engines:
        problem = f"is {section.min_running_model_num}, but there are {engines} engines (rollout_model.engine_num)"
        notes.wrong((*_EXPLORER, "min_running_model_num"), problem, f"write at most {engines}")
    if engines > 1 and section.proxy_port == 0:
        problem = f"is 0, but {engines} engines share one port"
        notes.wrong((*_EXPLORER, "proxy_port"), problem, "set a port")
    if section.proxy_port > 65535:
        notes.wrong((*_EXPLORER, "proxy_port"), f"is {section.proxy_port}, beyond the last port", "write at most 65535")
    try:
        ip_address(section.listen_address)
    except ValueError:
        problem = f"is {section.listen_address!r}, which is not an IP address"
        notes.wrong((*_EXPLORER, "listen_address"), problem, "write 127.0.0.1, or 0.0.0.0 for all interfaces")
    if section.concurrent_mode == "multi-threading":
        problem = "has no effect with mode serve: there is no workflow"
        notes.wrong((*_EXPLORER, "concurrent_mode"), problem, "leave it out", Unsupported)
    # Experiences sampled with older weights still count: only an explicit policy discards clients' conversations.
    policy = stage.policy
    if experiment.policy is None and policy.max_uses == 1:
        policy = msgspec.structs.replace(policy, bounded=False)
    return msgspec.structs.replace(
        stage,
        serving=ServingSpec(address=section.listen_address, port=section.proxy_port),
        collect_groups=stage.collect_groups or (LAST_INDEX if stage.kind == "explore" else 0),
        max_read_timeout_s=_read_timeout_s(experiment),
        policy=policy,
    )


def with_queue(stage: StageSpec, experiment: Experiment) -> StageSpec:
    """Returns the stage of a task queue, which waits for tasks without limit unless the file sets a time-out."""
    return msgspec.structs.replace(stage, max_read_timeout_s=_read_timeout_s(experiment))


def _read_timeout_s(experiment: Experiment) -> float:
    """Returns the time-out for an incomplete batch: the file's, or practically none."""
    buffer = experiment.buffer.trainer_input.experience_buffer
    return buffer.max_read_timeout if "max_read_timeout" in buffer.model_fields_set else _PATIENCE_S
