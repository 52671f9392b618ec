"""`resolve_policy` combines `policy`, `replay_buffer`, `capacity` and `sample_strategy` into one `PolicySpec`."""

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
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import AlgorithmSpec, PolicySpec, PrioritySpec
from rftd.workers.control.policies.policy import PolicyView
from rftd.workers.control.policies.priorities import PRIORITIES
from rftd.workers.control.policies.registry import POLICIES, built_in, keeps_bound, make_policy

_POLICY: Final[FieldPath] = ("policy",)
"""Section of the policy."""
_BUFFER: Final[FieldPath] = ("buffer", "trainer_input", "experience_buffer")
"""Section of the experience buffer."""
_REPLAY: Final[FieldPath] = (*_BUFFER, "replay_buffer")
"""Section of the replay buffer."""

_STRATEGY_BOUND_PATH: Final[FieldPath] = ("algorithm", "sample_strategy_args", "max_staleness")
"""Field of the bound set by the sample strategy."""
_DECAYING: Final = ("linear_decay", "decay_limit_randomization")
"""Priority functions that accept the schema's default arguments."""
_MAX_SIMULATED_STEPS = 64
"""Maximum number of simulated steps between two publications: a policy admitting experiences for all of them never
stalls."""


def resolve_policy(
    experiment: Experiment, sync: Synchronizer, needed: int, algorithm: AlgorithmSpec, batch: int, notes: Notes
) -> PolicySpec:
    """Returns the policy of one stage; contradictions are added to `notes`.

    `needed` is the smallest staleness bound possible with the synchronizer, `batch` the experiences of one step.
    """
    section = _policy_section(experiment, notes)
    kind = section.name if isinstance(section, PluginPolicy) else section.kind
    inflight = _inflight_batches(experiment, sync)
    bound = _bound(section, sync, algorithm, needed, inflight, notes)
    priority, max_uses, cooldown_s = _replay(experiment, notes)
    capacity = _capacity(experiment.buffer.trainer_input.experience_buffer, batch, bound, notes)
    spec = PolicySpec(
        kind=kind,
        max_staleness_versions=bound,
        # With reuse and without a requested bound, an experience is trained as often as its priority allows.
        bounded=keeps_bound(kind) and (max_uses == 1 or _requests_bound(section, algorithm)),
        max_inflight_batches=inflight,
        min_group_members=_min_members(section, algorithm, notes),
        args=_args(section, sync, notes),
        priority=priority,
        max_uses=max_uses,
        cooldown_s=cooldown_s,
        capacity=capacity,
        evict_when_full=experiment.buffer.trainer_input.experience_buffer.replay_buffer.enable,
    )
    _check_reuse(spec, notes)
    # Simulated instead of computed: any kind of policy is checked by its answers, without a rule here.
    why = standstill(spec, interval=trainer_interval(sync) or 1, batch=batch, repeat_times=algorithm.repeat_times)
    # After another error the arguments are not as intended, and a standstill may only be a consequence.
    if why is not None and not notes.issues:
        notes.wrong((*_POLICY, "kind"), why, "lower sync_interval, raise its bound, or use kind: hard_bound")
    return spec


def _policy_section(experiment: Experiment, notes: Notes) -> AnyPolicy:
    """Returns the file's policy, or the default: `in_order` for deterministic runs, else `hard_bound`."""
    section = experiment.policy
    if not experiment.deterministic:
        return section or POLICY_KINDS["hard_bound"](kind="hard_bound")
    if section is not None and section.kind != "in_order":
        problem = "deterministic uses experiences in the order of the dataset"
        notes.wrong((*_POLICY, "kind"), problem, "write kind: in_order, or deterministic: false")
    return POLICY_KINDS["in_order"](kind="in_order") if section is None else section


def _inflight_batches(experiment: Experiment, sync: Synchronizer) -> int:
    """Returns how many batches may be under way, as required by the schedule."""
    if experiment.deterministic:
        return 1  # the next batch begins after the plan of the previous one, so none of its groups can come before
    if sync.sync_style == "fixed":
        # Explorers stop after this many batches until new weights arrive.
        return window_steps(sync, 0)
    most = max(experiment.explorer.max_inflight_batches, 1)
    # One window under way, while the previous one is trained.
    return max(most, window_steps(sync, 0)) if has_windows(sync) else most


def _requests_bound(section: AnyPolicy, algorithm: AlgorithmSpec) -> bool:
    """True if the file sets a staleness bound."""
    return section.max_staleness is not None or algorithm.sample_strategy == "staleness_control"


def _bound(
    section: AnyPolicy, sync: Synchronizer, algorithm: AlgorithmSpec, needed: int, inflight: int, notes: Notes
) -> int:
    """Returns the requested staleness bound, checked against the synchronizer."""
    field: FieldPath = (*_POLICY, "max_staleness")
    requested = section.max_staleness
    if algorithm.sample_strategy == "staleness_control":
        strategy_bound: int | None = algorithm.sample_strategy_args.get("max_staleness")
        if requested is None:
            field = _STRATEGY_BOUND_PATH
            requested = strategy_bound
        elif strategy_bound not in (None, requested):
            notes.wrong(
                _STRATEGY_BOUND_PATH,
                f"is {strategy_bound}, but policy.max_staleness is {requested}",
                "keep one of them",
            )
    if requested is None:
        # Experiences running ahead of the trainer are older by the run-ahead, in addition to the schedule's own delay.
        return needed if sync.sync_style == "fixed" else inflight + needed
    if requested < needed:
        problem = f"is {requested}, but with this synchronizer an experience is up to {needed} steps old"
        fix = f"set max_staleness to at least {needed}, or lower the sync intervals or sync_offset"
        notes.wrong(field, problem, fix)
    return requested


def _min_members(section: AnyPolicy, algorithm: AlgorithmSpec, notes: Notes) -> int:
    """Returns the smallest group to be trained, by default of 2 rollouts; a number above the group size is an issue."""
    requested = section.min_group_members
    most = algorithm.repeat_times
    if requested is None:
        return min(2, most)
    if requested > most:
        problem = f"is {requested}, but a group has {most} rollouts: every group would be retired"
        notes.wrong((*_POLICY, "min_group_members"), problem, f"set it to {most} or less, or raise repeat_times")
    return requested


def _args(section: AnyPolicy, sync: Synchronizer, notes: Notes) -> dict[str, Any]:
    """Returns the policy's arguments; those of a built-in policy with arguments derived from the schedule."""
    if isinstance(section, PluginPolicy):
        try:
            POLICIES.check(section.name)
        except ConfigError as error:
            notes.wrong((*_POLICY, "name"), error.what, error.fix, WrongValue)
        return dict(section.args)
    policy = built_in(section.kind)
    assert policy is not None, section.kind
    set_fields = section.model_dump(exclude=set(AnyPolicy.model_fields), exclude_defaults=True)
    return {**set_fields, **policy.scheduled(sync)}


def _replay(experiment: Experiment, notes: Notes) -> tuple[PrioritySpec, int, float]:
    """Returns priority, uses and cooldown of `replay_buffer`."""
    replay = experiment.buffer.trainer_input.experience_buffer.replay_buffer
    if not replay.enable:
        if replay.reuse_cooldown_time is not None:
            problem = "is set, but replay_buffer.enable is false: experiences are never reused"
            notes.wrong((*_REPLAY, "reuse_cooldown_time"), problem, "set replay_buffer.enable to true, or leave it out")
        for field in ("priority_fn", "priority_fn_args"):
            if field in replay.model_fields_set:
                notes.warn(f"{show((*_REPLAY, field))} has no effect: replay_buffer.enable is false")
        _check_priority(replay.priority_fn, _priority_args(replay), notes)
        return PrioritySpec(), 1, 0.0
    if experiment.deterministic:
        problem = "deterministic trains each experience once, in the order of the dataset"
        notes.wrong((*_REPLAY, "enable"), problem, "set it to false, or deterministic: false")
    name = replay.priority_fn
    args = _priority_args(replay)
    _check_priority(name, args, notes)
    if replay.reuse_cooldown_time is None:
        return PrioritySpec(kind=name, args=args), 1, 0.0
    # 3 is the default of the function's argument; the function itself enforces the limit through `max_uses`.
    limit = args.get("use_count_limit", 3) if name == "decay_limit_randomization" else 0
    max_uses = limit if isinstance(limit, int) else 0
    return PrioritySpec(kind=name, args=args), max_uses, replay.reuse_cooldown_time


def _priority_args(replay: ReplayBuffer) -> dict[str, Any]:
    """Returns the arguments of the priority function."""
    # The schema's default arguments belong to the decaying functions and are accepted by no other function.
    applies = replay.priority_fn in _DECAYING or "priority_fn_args" in replay.model_fields_set
    return dict(replay.priority_fn_args) if applies else {}


def _check_priority(name: str, args: dict[str, Any], notes: Notes) -> None:
    """Refuses an unknown priority function, or arguments that the function does not accept."""
    try:
        PRIORITIES.check(name)
    except ConfigError as error:
        notes.wrong((*_REPLAY, "priority_fn"), error.what, error.fix)
        return
    check_declared(PRIORITIES, name, args, (*_REPLAY, "priority_fn_args"), notes)


def _check_reuse(spec: PolicySpec, notes: Notes) -> None:
    """Refuses an order placing used experiences first again without any limit on their use."""
    if spec.max_uses or spec.bounded:
        return
    policy = built_in(spec.kind)
    if policy is not None and policy.oldest_first:
        problem = f"{spec.kind} uses the oldest first, used or not: the same experiences would be trained repeatedly"
        notes.wrong((*_POLICY, "kind"), problem, "set policy.max_staleness, or use kind: hard_bound")
    elif spec.priority.kind == "tag":
        problem = "tags do not decrease after a use: the same experiences would be trained repeatedly"
        fix = "use linear_decay or decay_limit_randomization, which include tags, or set policy.max_staleness"
        notes.wrong((*_REPLAY, "priority_fn"), problem, fix)


def _capacity(buffer: ExperienceBuffer, batch: int, bound: int, notes: Notes) -> int:
    """Returns the requested capacity, if a batch fits; otherwise the default, with room for the run-ahead."""
    if "capacity" not in buffer.model_fields_set:
        # The guide's default is smaller than the run-ahead of a wide bound: explorers would stall.
        return max(buffer.capacity, 2 * (min(bound, limits.ROOM_AHEAD_VERSIONS) + 1) * batch)
    if buffer.capacity < batch:
        problem = f"is {buffer.capacity}, but one step trains {batch} experiences: no batch could ever be filled"
        notes.wrong((*_BUFFER, "capacity"), problem, f"set it to at least {batch}, or lower train_batch_size")
    return buffer.capacity


def standstill(spec: PolicySpec, *, interval: int, batch: int, repeat_times: int) -> str | None:
    """Returns why training would stop for ever under the policy, with weights published every `interval` steps; None if
    not.

    A third-party policy is not imported here, and not checked.
    """
    if not POLICIES.builtin(spec.kind):
        return None
    try:
        policy = make_policy(spec)
    except ConfigError as error:
        return error.what
    for step in range(min(interval, _MAX_SIMULATED_STEPS)):
        waiting = 0
        while waiting < batch:
            # The worst case: the previous step is trained completely, no rollout is under way, and no newer weights are
            # announced.
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
                    f"policy {spec.kind} admits {waiting} of the {batch} experiences of step {step + 1}, but weights "
                    f"are published after step {interval}"
                )
            waiting += admitted
    return None
