"""`Asked`: the options of `rftd sim async`, and their conversion to stages and machines."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rftd.ops.errors import UsageError
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import AlgorithmSpec, ModelSpec, PolicySpec, RolloutSpec, StageSpec
from rftd.workers.control.policies.registry import keeps_bound
from rftd.workers.control.simulator.system import LongTail, SimulatedUpdates, System

_NO_MODEL: Final = ModelSpec(path="", max_model_len=1, max_prompt_tokens=1, max_response_tokens=1)
_UNITS: Final = 16
"""Default number of units: machines or devices that generate or train."""
_SLOTS: Final = 32
"""Default number of rollouts at a time on one unit."""
_BATCH: Final = 512
"""Default number of experiences per batch."""
_BOUND: Final = 2
"""Default bound of staleness in weight versions."""
_TRAIN_S: Final = 2.0
"""Default seconds of a training step on all units."""


class SimulationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `rftd sim async`; None for an option not set."""

    units: int | None = None
    """Number of GPUs, or other units, of the system."""
    slots: int | None = None
    """Number of concurrent rollouts of a generating unit."""
    train_units: int | None = None
    batch: int | None = None
    repeat_times: int | None = None
    policy: str | None = None
    """KIND, KIND:BOUND or KIND:BOUND:NAME=VALUE,..., the last for the kind's own arguments; also in `compare`."""
    bound: int | None = None
    inflight_batches: int | None = None
    train_s: float | None = None
    """Seconds of a step with all units training."""
    step_s: float | None = None
    """Seconds of a step on the training units."""
    publish_s: float = 0.0
    swap_s: float = 0.0
    updates: SimulatedUpdates = SimulatedUpdates.INFLIGHT
    compare: tuple[str, ...] = ()


def stages_of(options: SimulationOptions, stage: StageSpec | None) -> tuple[StageSpec, ...]:
    """Returns the stages, one for each policy to compare. Raises UsageError for contradictory options."""
    base = stage or StageSpec(
        name="sim",
        kind="both",
        total_steps=0,
        batch_size=_BATCH,
        train_batch_size=_BATCH,
        algorithm=AlgorithmSpec(kind="grpo"),
        model=_NO_MODEL,
        policy=PolicySpec(max_staleness_versions=_BOUND, max_inflight_batches=_BOUND + 1),
        synchronizer=Synchronizer(sync_method="checkpoint", sync_style="fully_async"),
    )
    batch = options.batch or base.train_batch_size
    repeat_times = options.repeat_times or base.algorithm.repeat_times
    if batch % repeat_times:
        raise UsageError(
            f"a batch of {batch} experiences does not hold whole groups of {repeat_times}",
            field="batch",
            fix=f"{batch - batch % repeat_times or repeat_times} for example",
        )
    base = msgspec.structs.replace(
        base,
        batch_size=batch // repeat_times,
        train_batch_size=batch,
        algorithm=msgspec.structs.replace(base.algorithm, repeat_times=repeat_times),
        policy=_policy(base.policy, options.policy, options.bound, options.inflight_batches),
    )
    return tuple(
        msgspec.structs.replace(base, policy=_policy(base.policy, text, options.bound, options.inflight_batches))
        for text in options.compare
    ) or (base,)


def system_of(options: SimulationOptions, stage: StageSpec | None, batch: int, lengths: LongTail) -> System:
    """Returns the machines: one trainer and `explorers` units of an experiment, or the best split without an
    experiment.
    """
    rollout = stage.rollout if stage is not None else RolloutSpec(explorers=0, concurrency=_SLOTS)
    units = options.units or (rollout.explorers + 1 if stage is not None else _UNITS)
    train_units = options.train_units or (
        units - rollout.explorers if stage is not None and not options.units else None
    )
    if units < 2:
        raise UsageError(f"{units} unit cannot generate and train at once", field="units", fix="2 or more")
    system = System(
        units=units,
        slots=options.slots or rollout.concurrency,
        train_units=train_units if train_units is not None else 1,
        train_s=_TRAIN_S if options.train_s is None else options.train_s,
        publish_s=options.publish_s,
        swap_s=options.swap_s,
        updates=options.updates,
    )
    if options.step_s is None:
        # Without an experiment the split is free: the best one flatters every policy alike.
        return system if train_units is not None else system.best_split(batch, lengths.mean_s)
    if train_units is None:
        raise UsageError(
            "the duration of a step means nothing without the number of training units",
            field="step_time",
            fix="add --train-units, or give --train-time, the duration with all units training",
        )
    # `train_s` is for a step on all units: on k of n units a step takes n / k times as long.
    return msgspec.structs.replace(system, train_s=options.step_s * train_units / units)


def _policy(base: PolicySpec, text: str | None, bound: int | None, inflight: int | None) -> PolicySpec:
    """Returns the policy with the options applied; batches in flight follow the bound, unless given as well."""
    changes: dict[str, Any] = {}
    if text is not None:
        kind, bound, args = _parse_policy(text, bound)
        changes = {"kind": kind, "args": args, "bounded": keeps_bound(kind)}
    if bound is not None:
        # Like the resolver for `fully_async`: running further ahead is the source of old experiences.
        changes |= {"max_staleness_versions": bound, "max_inflight_batches": bound + 1}
    if inflight is not None:
        changes["max_inflight_batches"] = inflight
    return msgspec.structs.replace(base, **changes)


def _parse_policy(text: str, bound: int | None) -> tuple[str, int | None, dict[str, Any]]:
    """Returns kind, bound and arguments of KIND:BOUND:NAME=VALUE. Raises UsageError for any other form."""
    kind, _, bound_and_args = text.partition(":")
    number, _, pairs = bound_and_args.partition(":")
    args = dict(pair.split("=", 1) for pair in pairs.split(",") if "=" in pair)
    if (number and not number.isdecimal()) or (pairs and len(args) != len(pairs.split(","))):
        fix = "KIND, KIND:BOUND or KIND:BOUND:NAME=VALUE, for example weight_fifo:2:wait=true"
        raise UsageError(f"{text!r} is no policy", field="policy", fix=fix)
    return kind, int(number) if number else bound, {name: _value(argument) for name, argument in args.items()}


def _value(text: str) -> Any:
    """Returns the JSON value of a text, or the text itself if it is no JSON."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
