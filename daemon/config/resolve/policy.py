"""`resolve_policy` makes one `PolicySpec` of `policy`, `replay_buffer`, `capacity` and `sample_strategy`."""

from __future__ import annotations

from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Notes, WrongValue
from rftd.daemon.config.resolve.arguments import check_declared
from rftd.daemon.config.schema.buffer import ExperienceBuffer, ReplayBuffer
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.policy import POLICY_KINDS, AnyPolicy, PluginPolicy
from rftd.ops import limits
from rftd.ops.errors import ConfigError
from rftd.streams.spec.schedule import has_windows, trainer_interval, window_steps
from rftd.streams.spec.spec import AlgorithmSpec, PolicySpec, PrioritySpec
from rftd.streams.spec.synchronizer import Synchronizer
from rftd.workers.control.policies.policy import PolicyView
from rftd.workers.control.policies.priorities import PRIORITIES
from rftd.workers.control.policies.registry import POLICIES, built_in, keeps_bound, make_policy

_POLICY: Final[FieldPath] = ("policy",)
_BUFFER: Final[FieldPath] = ("buffer", "trainer_input", "experience_buffer")
_REPLAY: Final[FieldPath] = (*_BUFFER, "replay_buffer")

_OF_STRATEGY: Final[FieldPath] = ("algorithm", "sample_strategy_args", "max_staleness")
_DECAYING: Final = ("linear_decay", "decay_limit_randomization")
_ENOUGH_STEPS = 64
"""Steps between two publications that are looked at: a policy that goes on for so long goes on."""


def resolve_policy(
    experiment: Experiment, sync: Synchronizer, needed: int, algorithm: AlgorithmSpec, batch: int, notes: Notes
) -> PolicySpec:
    """The policy of one stage, or an issue for what contradicts it.

    `needed` is the least bound with which the synchronizer can go on, `batch` the experiences of one step.
    """
    given = _given(experiment, notes)
    kind = given.name if isinstance(given, PluginPolicy) else given.kind
    inflight = _inflight_batches(experiment, sync)
    bound = _bound(given, sync, algorithm, needed, inflight, notes)
    priority, max_uses, cooldown_s = _replay(experiment, notes)
    capacity = _capacity(experiment.buffer.trainer_input.experience_buffer, batch, bound, notes)
    spec = PolicySpec(
        kind=kind,
        max_staleness_versions=bound,
        # With reuse and no bound asked for, an experience is trained as often as its priority lets it.
        bounded=keeps_bound(kind) and (max_uses == 1 or _asks(given, algorithm)),
        max_inflight_batches=inflight,
        min_group_members=_min_members(given, algorithm, notes),
        args=_args(given, sync, notes),
        priority=priority,
        max_uses=max_uses,
        cooldown_s=cooldown_s,
        capacity=capacity,
        evict_when_full=experiment.buffer.trainer_input.experience_buffer.replay_buffer.enable,
    )
    _check_reuse(spec, notes)
    # Played, not reckoned: a kind of policy is then right or wrong by what it answers, with no rule about it here.
    why = standstill(spec, interval=trainer_interval(sync) or 1, batch=batch, repeat_times=algorithm.repeat_times)
    # Beside another error the arguments are not what the user meant, and this one would only follow from it.
    if why is not None and not notes.issues:
        notes.wrong((*_POLICY, "kind"), why, "lower sync_interval, raise its bound, or use kind: hard_bound")
    return spec


def _given(experiment: Experiment, notes: Notes) -> AnyPolicy:
    asked = experiment.policy
    if not experiment.deterministic:
        return asked or POLICY_KINDS["hard_bound"](kind="hard_bound")
    if asked is not None and asked.kind != "in_order":
        what = "deterministic takes experiences in the order of the dataset"
        notes.wrong((*_POLICY, "kind"), what, "write kind: in_order, or deterministic: false")
    return POLICY_KINDS["in_order"](kind="in_order") if asked is None else asked


def _inflight_batches(experiment: Experiment, sync: Synchronizer) -> int:
    if experiment.deterministic:
        return 1  # the next batch begins once this one is planned, so none of its groups can come before
    if sync.sync_style == "fixed":
        # Explorers stand still after so many batches until new weights.
        return window_steps(sync, 0)
    most = max(experiment.explorer.max_inflight_batches, 1)
    # A window under way, while the one before is trained.
    return max(most, window_steps(sync, 0)) if has_windows(sync) else most


def _asks(given: AnyPolicy, algorithm: AlgorithmSpec) -> bool:
    return given.max_staleness is not None or algorithm.sample_strategy == "staleness_control"


def _bound(
    given: AnyPolicy, sync: Synchronizer, algorithm: AlgorithmSpec, needed: int, inflight: int, notes: Notes
) -> int:
    """The bound that was asked for, if the synchronizer can go on with it."""
    field: FieldPath = (*_POLICY, "max_staleness")
    asked = given.max_staleness
    if algorithm.sample_strategy == "staleness_control":
        other: int | None = algorithm.sample_strategy_args.get("max_staleness")
        if asked is None:
            field = _OF_STRATEGY
            asked = other
        elif other not in (None, asked):
            notes.wrong(_OF_STRATEGY, f"is {other}, and policy.max_staleness is {asked}", "keep one of them")
    if asked is None:
        # What runs ahead of the trainer is that much older when its turn comes, beside what the schedule
        # itself costs.
        return needed if sync.sync_style == "fixed" else inflight + needed
    if asked < needed:
        what = f"is {asked}, but with this synchronizer an experience is up to {needed} steps old"
        fix = f"set max_staleness to at least {needed}, or lower the sync intervals or sync_offset"
        notes.wrong(field, what, fix)
    return asked


def _min_members(given: AnyPolicy, algorithm: AlgorithmSpec, notes: Notes) -> int:
    asked = given.min_group_members
    most = algorithm.repeat_times
    if asked is None:
        return min(2, most)
    if asked > most:
        what = f"is {asked}, but a group has {most} rollouts: every one would be retired"
        notes.wrong((*_POLICY, "min_group_members"), what, f"set it to {most} or less, or raise repeat_times")
    return asked


def _args(given: AnyPolicy, sync: Synchronizer, notes: Notes) -> dict[str, Any]:
    if isinstance(given, PluginPolicy):
        try:
            POLICIES.check(given.name)
        except ConfigError as error:
            notes.wrong((*_POLICY, "name"), error.what, error.fix, WrongValue)
        return dict(given.args)
    policy = built_in(given.kind)
    assert policy is not None, given.kind
    own = given.model_dump(exclude=set(AnyPolicy.model_fields), exclude_defaults=True)
    return {**own, **policy.scheduled(sync)}


def _replay(experiment: Experiment, notes: Notes) -> tuple[PrioritySpec, int, float]:
    """Priority, uses and cooldown of `replay_buffer`."""
    replay = experiment.buffer.trainer_input.experience_buffer.replay_buffer
    if not replay.enable:
        if replay.reuse_cooldown_time is not None:
            what = "is set, but replay_buffer.enable is false: nothing is ever used again"
            notes.wrong((*_REPLAY, "reuse_cooldown_time"), what, "set replay_buffer.enable to true, or leave it out")
        for field in ("priority_fn", "priority_fn_args"):
            if field in replay.model_fields_set:
                notes.warn(f"{show((*_REPLAY, field))} has no effect: replay_buffer.enable is false")
        _check_priority(replay.priority_fn, _priority_args(replay), notes)
        return PrioritySpec(), 1, 0.0
    if experiment.deterministic:
        what = "deterministic trains each experience once, in the order of the dataset"
        notes.wrong((*_REPLAY, "enable"), what, "set it to false, or deterministic: false")
    name = replay.priority_fn
    args = _priority_args(replay)
    _check_priority(name, args, notes)
    if replay.reuse_cooldown_time is None:
        return PrioritySpec(kind=name, args=args), 1, 0.0
    # 3 is the default of the function's own argument; the function itself leaves the limit to `max_uses`.
    limit = args.get("use_count_limit", 3) if name == "decay_limit_randomization" else 0
    max_uses = limit if isinstance(limit, int) else 0
    return PrioritySpec(kind=name, args=args), max_uses, replay.reuse_cooldown_time


def _priority_args(replay: ReplayBuffer) -> dict[str, Any]:
    # The schema's default arguments are those of the decaying functions, which no other one takes.
    written = replay.priority_fn in _DECAYING or "priority_fn_args" in replay.model_fields_set
    return dict(replay.priority_fn_args) if written else {}


def _check_priority(name: str, args: dict[str, Any], notes: Notes) -> None:
    try:
        PRIORITIES.check(name)
    except ConfigError as error:
        notes.wrong((*_REPLAY, "priority_fn"), error.what, error.fix)
        return
    check_declared(PRIORITIES, name, args, (*_REPLAY, "priority_fn_args"), notes)


def _check_reuse(spec: PolicySpec, notes: Notes) -> None:
    """Refuses an order in which what was used comes first again, where nothing ever ends its use."""
    if spec.max_uses or spec.bounded:
        return
    policy = built_in(spec.kind)
    if policy is not None and policy.oldest_first:
        what = f"{spec.kind} takes the oldest first, used or not: the same ones would be trained over and over"
        notes.wrong((*_POLICY, "kind"), what, "set policy.max_staleness, or use kind: hard_bound")
    elif spec.priority.kind == "tag":
        what = "a tag is no lower after a use: the same experiences would be trained over and over"
        fix = "use linear_decay or decay_limit_randomization, which tags go into, or set policy.max_staleness"
        notes.wrong((*_REPLAY, "priority_fn"), what, fix)


def _capacity(buffer: ExperienceBuffer, batch: int, bound: int, notes: Notes) -> int:
    """The capacity that was asked for, if a batch fits; without one the default, with room for what may run ahead."""
    if "capacity" not in buffer.model_fields_set:
        # The guide's default is smaller than what a wide bound lets run ahead: explorers would stand still at
        # it.
        return max(buffer.capacity, 2 * (min(bound, limits.ROOM_AHEAD_VERSIONS) + 1) * batch)
    if buffer.capacity < batch:
        what = f"is {buffer.capacity}, but one step trains {batch} experiences: no batch would ever be full"
        notes.wrong((*_BUFFER, "capacity"), what, f"set it to at least {batch}, or lower train_batch_size")
    return buffer.capacity


def standstill(spec: PolicySpec, *, interval: int, batch: int, repeat_times: int) -> str | None:
    """The reason why no step could be made any more, or None. Weights are published every `interval` steps.

    A third party's policy is not imported here, and not asked.
    """
    if not POLICIES.builtin(spec.kind):
        return None
    try:
        policy = make_policy(spec)
    except ConfigError as error:
        return error.what
    for step in range(min(interval, _ENOUGH_STEPS)):
        waiting = 0
        while waiting < batch:
            # The worst case: all of the step before is trained, nothing is under way, and no newer weights
            # are announced.
            view = PolicyView(
                version=step,
                first_version=0,
                published_version=0,
                total_steps=10**9,
                planned_steps=step,
                batch_size=batch,
                repeat_times=repeat_times,
                planned_experiences=step * batch,
                waiting_experiences=waiting,
                inflight_rollouts=0,
            )
            if not (admitted := policy.admit(view) * repeat_times):
                return (
                    f"policy {spec.kind} lets in {waiting} of the {batch} experiences of step {step + 1}, and weights "
                    f"are published after step {interval}"
                )
            waiting += admitted
    return None
