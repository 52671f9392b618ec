"""Section `explorer`: the rollout engine, and how rollouts are given out."""

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
from rftd.streams.spec.auxiliary import SERVICE
from rftd.streams.spec.slow_rollouts import DynamicTimeout, OverRollout, StragglerReissue
from rftd.streams.spec.spec import AlgorithmSpec, RolloutSpec
from rftd.streams.spec.synchronizer import Synchronizer
from rftd.workers.devices.host import Host

ROLLOUT_ARGS: Final[FieldPath] = ("explorer", "rollout_model", "extra_engine_args")
_OURS: Final = "RFTD_"
_CODE: Final = re.compile(
    r"LD_.*|DYLD_.*|PATH|PYTHON(PATH|HOME|STARTUP|USERBASE|PLATLIBDIR)|BASH_ENV|ENV|IFS|SHELLOPTS"
)
"""Variables by which a loader, a shell or an interpreter chooses the code that it runs: no data may."""
_OVER: Final[FieldPath] = ("explorer", "over_rollout", "ratio")
_DYNAMIC: Final[FieldPath] = ("explorer", "dynamic_timeout", "enable")


def resolve_rollout(experiment: Experiment, host: Host, notes: Notes) -> RolloutSpec:
    """The explorers of one stage."""
    given = experiment.explorer
    model = experiment.explorer.rollout_model
    chosen = choose_engine(experiment, host, notes)
    if model.engine_num > limits.WORKER_SLOTS:
        what = f"is {model.engine_num}, and an experiment has {limits.WORKER_SLOTS} slots for explorers"
        fix = f"write at most {limits.WORKER_SLOTS}, and raise explorer.runner_per_model"
        notes.wrong(("explorer", "rollout_model", "engine_num"), what, fix)
    plain = _plain_variables(given.env_vars, notes)
    args, lifted = lifted_counts(model.extra_engine_args, ("threads",), ROLLOUT_ARGS, notes)
    check_arguments(chosen.engine, args, ROLLOUT_ARGS, notes)
    check_hang(chosen.engine, args, given.max_timeout, ROLLOUT_ARGS, notes)
    if chosen.engine == SERVICE:
        args = with_service(experiment, args)
    return RolloutSpec(
        engine=chosen.engine,
        explorers=model.engine_num,
        concurrency=given.runner_per_model,
        max_timeout_s=given.max_timeout,
        max_retry_times=given.max_retry_times,
        dtype=resolve_dtype(experiment, chosen, host),
        threads=lifted.get("threads", 1),
        engine_args=args,
        needs=resolve_needs(experiment, chosen, notes),
        environment=tuple(sorted(given.env_vars.keys() - plain.keys())),
        environment_values=plain,
        eval_engine=given.eval_engine or ("own" if experiment.deterministic else "shared"),
    )


def _plain_variables(variables: Mapping[str, Any], notes: Notes) -> dict[str, str]:
    """The variables that explorers are given; of the others, which they read where they run, only names are kept."""
    plain: dict[str, str] = {}
    for name, value in sorted(variables.items()):
        where = ("explorer", "env_vars", name)
        if not ENV_NAME.fullmatch(name):
            notes.wrong(where, "is no name of a variable", "take letters, digits and _, and no digit first", WrongValue)
        elif name.startswith(_OURS):
            notes.wrong(where, f"begins with {_OURS}, as the daemon's own variables do", "leave it out", WrongValue)
        elif _CODE.fullmatch(name) and not isinstance(value, dict):
            fix = "set it where the workers are started"
            notes.wrong(where, "chooses what programs run, which no experiment may", fix, WrongValue)
        elif isinstance(value, bool | list) or (isinstance(value, dict) and set(value) != {"env"}):
            notes.wrong(where, "is neither text nor a number", f'write "text", or {{env: {name}}}', WrongValue)
        elif value is not None and not isinstance(value, dict):
            plain[name] = str(value)
    return plain


def schedule_rollouts(
    rollout: RolloutSpec, experiment: Experiment, algorithm: AlgorithmSpec, sync: Synchronizer, notes: Notes
) -> RolloutSpec:
    """The explorers of one stage, with all that the dispatcher goes by."""
    given = experiment.explorer
    _check_over(experiment, sync, notes)
    _check_dynamic(experiment, notes)
    reissue = given.straggler_reissue
    if reissue.enable and rollout.explorers < 2:
        notes.warn(
            "explorer.straggler_reissue has no effect before a second explorer joins: "
            f"explorer.rollout_model.engine_num is {rollout.explorers}"
        )
    part = min(given.max_repeat_times_per_runner or algorithm.repeat_times, algorithm.repeat_times)
    return msgspec.structs.replace(
        rollout,
        concurrency=_at_once(experiment, rollout.explorers, part, notes),
        lease_rollouts=part if part < algorithm.repeat_times else 0,
        threads_each=given.concurrent_mode == "multi-threading",
        over_rollout=as_declared(given.over_rollout, OverRollout),
        dynamic_timeout=as_declared(given.dynamic_timeout, DynamicTimeout),
        straggler_reissue=as_declared(reissue, StragglerReissue),
    )


def _at_once(experiment: Experiment, explorers: int, part: int, notes: Notes) -> int:
    """Rollouts of one explorer at once: a runner does one after another, or those of its part together."""
    given = experiment.explorer
    if given.concurrent_mode == "sequential":
        return given.runner_per_model
    # Rounded up: the explorer that takes the rest of an uneven split needs a runner for it.
    most = -(-experiment.buffer.batch_size // explorers)
    runners = min(given.runner_per_model, most)
    if runners < given.runner_per_model:
        notes.warn(
            f"explorer.runner_per_model {given.runner_per_model} becomes {runners}: with concurrent_mode "
            f"{given.concurrent_mode} a runner takes a task at a time, and an explorer's share of "
            f"{experiment.buffer.batch_size} tasks is {most}"
        )
    return runners * part


def _check_over(experiment: Experiment, sync: Synchronizer, notes: Notes) -> None:
    over = experiment.explorer.over_rollout
    batch = experiment.buffer.batch_size
    if not over.ratio:
        return
    if sync.sync_style == "fixed":
        what = "goes on without the slowest tasks of a step, and sync_style fixed trains on all of them"
        fix = "write ratio: 0, or synchronizer.sync_style: fully_async"
        notes.wrong(_OVER, what, fix)
    # The dispatcher rounds the tasks that it needs up in the same way, with the same allowance for the binary
    # fraction.
    elif int(batch * over.ratio + 1e-9) == 0:
        notes.warn(
            f"explorer.over_rollout.ratio {over.ratio:g} has no effect: of {batch} tasks each is needed; "
            f"from {1 / batch:.3g} on one is not"
        )


def _check_dynamic(experiment: Experiment, notes: Notes) -> None:
    dynamic = experiment.explorer.dynamic_timeout
    if not dynamic.enable:
        return
    if experiment.deterministic:
        what = "makes what is trained on depend on how long rollouts took, and the experiment is deterministic"
        notes.wrong(_DYNAMIC, what, "write enable: false, or deterministic: false")
    if dynamic.ratio <= 1:
        notes.warn(
            f"explorer.dynamic_timeout.ratio {dynamic.ratio:g} ends every rollout that takes longer than the mean, so "
            "the mean falls, and with it the time-out"
        )
