"""Section `explorer`: the rollout engine, and leases of rollouts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rftd.daemon.config.client_side import ENV_NAME
from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Notes, WrongValue
from rftd.daemon.config.resolve.arguments import lifted_counts
from rftd.daemon.config.resolve.bench import with_service
from rftd.daemon.config.resolve.rollout_engine import (
    check_arguments,
    check_hang,
    choose_engine,
    resolve_dtype,
    resolve_needs,
)
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import as_declared
from rftd.ops import limits
from rftd.streams.spec.engines import SERVICE
from rftd.streams.spec.sections import DynamicTimeout, OverRollout, StragglerReissue, Synchronizer
from rftd.streams.spec.spec import AlgorithmSpec, RolloutSpec
from rftd.workers.devices.host import Host

ROLLOUT_ARGS: Final[FieldPath] = ("explorer", "rollout_model", "extra_engine_args")
"""Field of the engine's arguments."""
_OURS: Final = "RFTD_"
"""Beginning of rftd's own environment variables."""
_CODE: Final = re.compile(
    r"LD_.*|DYLD_.*|PATH|PYTHON(PATH|HOME|STARTUP|USERBASE|PLATLIBDIR)|BASH_ENV|ENV|IFS|SHELLOPTS"
)
"""Variables that make a loader, shell or interpreter execute other code; never accepted from a file."""
_OVER: Final[FieldPath] = ("explorer", "over_rollout", "ratio")
"""Field of the ended explore steps."""
_DYNAMIC: Final[FieldPath] = ("explorer", "dynamic_timeout", "enable")
"""Field of the dynamic time-out."""


def resolve_rollout(experiment: Experiment, host: Host, notes: Notes) -> RolloutSpec:
    """Returns the explorers of one stage: engine, number, concurrency, time-outs, environment and devices."""
    section = experiment.explorer
    model = experiment.explorer.rollout_model
    choice = choose_engine(experiment, host, notes)
    if model.engine_num > limits.WORKER_SLOTS:
        problem = f"is {model.engine_num}, but an experiment has {limits.WORKER_SLOTS} slots for explorers"
        fix = f"write at most {limits.WORKER_SLOTS}, and raise explorer.runner_per_model"
        notes.wrong(("explorer", "rollout_model", "engine_num"), problem, fix)
    plain = _plain_variables(section.env_vars, notes)
    args, lifted = lifted_counts(model.extra_engine_args, ("threads",), ROLLOUT_ARGS, notes)
    check_arguments(choice.engine, args, ROLLOUT_ARGS, notes)
    check_hang(choice.engine, args, section.max_timeout, ROLLOUT_ARGS, notes)
    if choice.engine == SERVICE:
        args = with_service(experiment, args)
    return RolloutSpec(
        engine=choice.engine,
        explorers=model.engine_num,
        concurrency=section.runner_per_model,
        max_timeout_s=section.max_timeout,
        max_retry_times=section.max_retry_times,
        dtype=resolve_dtype(experiment, choice, host),
        threads=lifted.get("threads", 1),
        engine_args=args,
        needs=resolve_needs(experiment, choice, notes),
        environment=tuple(sorted(section.env_vars.keys() - plain.keys())),
        environment_values=plain,
        eval_engine=section.eval_engine or ("own" if experiment.deterministic else "shared"),
    )


def _plain_variables(variables: Mapping[str, Any], notes: Notes) -> dict[str, str]:
    """Returns the plain variables passed to explorers; of secrets, read on the explorer's machine, only names are
    stored.
    """
    plain: dict[str, str] = {}
    for name, content in sorted(variables.items()):
        where = ("explorer", "env_vars", name)
        if not ENV_NAME.fullmatch(name):
            notes.wrong(
                where,
                "is not a valid variable name",
                "use letters, digits and _, not beginning with a digit",
                WrongValue,
            )
        elif name.startswith(_OURS):
            notes.wrong(where, f"begins with {_OURS}, as the daemon's own variables do", "leave it out", WrongValue)
        elif _CODE.fullmatch(name) and not isinstance(content, dict):
            fix = "set it where the workers are started"
            notes.wrong(where, "selects the code that programs run, which an experiment must not do", fix, WrongValue)
        elif isinstance(content, bool | list) or (isinstance(content, dict) and set(content) != {"env"}):
            notes.wrong(where, "is neither text nor a number", f'write "text", or {{env: {name}}}', WrongValue)
        elif content is not None and not isinstance(content, dict):
            plain[name] = str(content)
    return plain


def schedule_rollouts(
    rollout: RolloutSpec, experiment: Experiment, algorithm: AlgorithmSpec, sync: Synchronizer, notes: Notes
) -> RolloutSpec:
    """Returns the explorers of one stage with the settings needed by the dispatcher, such as sizes of leases."""
    section = experiment.explorer
    _check_over(experiment, sync, notes)
    _check_dynamic(experiment, notes)
    reissue = section.straggler_reissue
    if reissue.enable and rollout.explorers < 2:
        notes.warn(
            "explorer.straggler_reissue has no effect before a second explorer joins: "
            f"explorer.rollout_model.engine_num is {rollout.explorers}"
        )
    lease_size = min(section.max_repeat_times_per_runner or algorithm.repeat_times, algorithm.repeat_times)
    return msgspec.structs.replace(
        rollout,
        concurrency=_at_once(experiment, rollout.explorers, lease_size, notes),
        lease_rollouts=lease_size if lease_size < algorithm.repeat_times else 0,
        threads_each=section.concurrent_mode == "multi-threading",
        over_rollout=as_declared(section.over_rollout, OverRollout),
        dynamic_timeout=as_declared(section.dynamic_timeout, DynamicTimeout),
        straggler_reissue=as_declared(reissue, StragglerReissue),
    )


def _at_once(experiment: Experiment, explorers: int, lease_size: int, notes: Notes) -> int:
    """Returns concurrent rollouts per explorer: a runner executes one at a time, or all rollouts of its lease."""
    section = experiment.explorer
    if section.concurrent_mode == "sequential":
        return section.runner_per_model
    # Rounded up: the explorer with the remainder of an uneven split needs a runner for it.
    most = -(-experiment.buffer.batch_size // explorers)
    runners = min(section.runner_per_model, most)
    if runners < section.runner_per_model:
        notes.warn(
            f"explorer.runner_per_model {section.runner_per_model} becomes {runners}: with concurrent_mode "
            f"{section.concurrent_mode} a runner executes one task at a time, and an explorer's share of "
            f"{experiment.buffer.batch_size} tasks is {most}"
        )
    return runners * lease_size


def _check_over(experiment: Experiment, sync: Synchronizer, notes: Notes) -> None:
    """Refuses steps ended early where all tasks are trained, and a share too small for one task."""
    over = experiment.explorer.over_rollout
    batch = experiment.buffer.batch_size
    if not over.ratio:
        return
    if sync.sync_style == "fixed":
        problem = "continues without the slowest tasks of a step, but sync_style fixed trains on all of them"
        fix = "write ratio: 0, or synchronizer.sync_style: fully_async"
        notes.wrong(_OVER, problem, fix)
    # The dispatcher rounds up the number of needed tasks in the same way, with an equal allowance for the binary
    # fraction.
    elif int(batch * over.ratio + 1e-9) == 0:
        notes.warn(
            f"explorer.over_rollout.ratio {over.ratio:g} has no effect: all {batch} tasks are needed; "
            f"one task can be skipped from {1 / batch:.3g}"
        )


def _check_dynamic(experiment: Experiment, notes: Notes) -> None:
    """Refuses a dynamic time-out in deterministic runs, and warns of one below the mean."""
    dynamic = experiment.explorer.dynamic_timeout
    if not dynamic.enable:
        return
    if experiment.deterministic:
        problem = "makes the training data depend on rollout times, but the experiment is deterministic"
        notes.wrong(_DYNAMIC, problem, "write enable: false, or deterministic: false")
    if dynamic.ratio <= 1:
        notes.warn(
            f"explorer.dynamic_timeout.ratio {dynamic.ratio:g} ends every rollout that takes longer than the mean, so "
            "the mean falls, and with it the time-out"
        )
