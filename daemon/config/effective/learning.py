"""Sections `algorithm`, `trainer` and `policy`, and the replay buffer, with all effective values."""

from __future__ import annotations

from typing import Any

import msgspec

from rftd.daemon.config.effective.arguments import acting_fields, struct_defaults, with_defaults
from rftd.daemon.config.resolve.algorithm import PARTS, STRATEGIES, other_names
from rftd.daemon.config.schema.policy import fields_of
from rftd.streams.spec.spec import AlgorithmSpec, PolicySpec, StageSpec
from rftd.streams.spec.stage_parts import BestSpec, ByEvaluation, CorrectionPart, EarlyStopSpec, UpdatesSpec
from rftd.workers.control.policies.priorities import PRIORITIES
from rftd.workers.control.policies.registry import built_in, keeps_bound
from rftd.workers.learning import engine_registry as trainer_engines
from rftd.workers.learning.corrections.registry import CORRECTIONS
from rftd.workers.learning.losses.registry import POLICY_LOSSES

TINKER = "tinker"
"""Name of the service's engine."""


def algorithm_section(spec: AlgorithmSpec) -> dict[str, Any]:
    """Returns section `algorithm`: the objective with every part and argument, defaults written out."""
    section: dict[str, Any] = {"algorithm_type": spec.kind, "repeat_times": spec.repeat_times}
    section["sample_strategy"] = spec.sample_strategy
    section["sample_strategy_args"] = struct_defaults(STRATEGIES.get(spec.sample_strategy), spec.sample_strategy_args)
    for part_name, plugins in PARTS.items():
        name: str = getattr(spec, part_name)
        section[f"{part_name}_fn"] = name
        arguments = with_defaults(plugins, name, getattr(spec, f"{part_name}_args"))
        if plugins is POLICY_LOSSES:
            # The file may set the aggregation here as well; `loss_agg_mode` below covers all losses.
            arguments = {
                argument: setting
                for argument, setting in arguments.items()
                if argument in spec.policy_loss_args or argument not in other_names(name)
            }
        section[f"{part_name}_fn_args"] = arguments
    section["kl_penalty_place"] = spec.kl_penalty_place
    section["loss_agg_mode"] = spec.loss_agg_mode
    section["loss_scale_factor"] = spec.loss_scale_factor
    section["bypass_old_logprobs"] = spec.correction.old_logprobs == "rollout"
    if spec.correction.parts or spec.correction.old_logprobs != "rollout":
        parts = [_correction(correction) for correction in spec.correction.parts]
        section["rollout_correction"] = {"old_logprobs": spec.correction.old_logprobs, "corrections": parts}
    section["optimizer"] = acting_fields(spec.optimizer)
    return section


def _correction(correction: CorrectionPart) -> dict[str, Any]:
    """Returns the section of one correction."""
    if not CORRECTIONS.builtin(correction.kind):
        return {"kind": "plugin", "name": correction.kind, "args": correction.args}
    return {"kind": correction.kind, **with_defaults(CORRECTIONS, correction.kind, correction.args)}


def trainer_section(stage: StageSpec) -> dict[str, Any]:
    """Returns section `trainer`: engine, checkpoints, optimizer steps, and every argument of the engine, defaults
    written out.
    """
    spec = stage.trainer
    arguments = dict(spec.engine_args)
    if spec.engine == TINKER:
        arguments = {}  # model.tinker has them
    else:
        submitted = arguments
        arguments = struct_defaults(trainer_engines.arguments_of(spec.engine), submitted)
        if spec.engine == "verl" and spec.devices and "ranks" not in submitted:
            del arguments["ranks"]  # one rank per GPU, regardless of the submitted number
    if spec.threads:  # 0 means all available threads and cannot be written
        arguments["threads"] = spec.threads
    arguments["dtype"] = spec.dtype
    section: dict[str, Any] = {
        "trainer_type": spec.engine,
        "save_interval": spec.save_interval,
        "max_checkpoints_to_keep": spec.max_checkpoints_to_keep,
        "save_hf_checkpoint": spec.save_hf,
        "max_token_len_per_gpu": spec.max_tokens_per_micro_batch,
        "grad_clip": stage.algorithm.optimizer.clip_grad,
        "max_nonfinite_steps": spec.max_nonfinite_steps,
        "max_idle_steps": spec.max_idle_steps,
        **_by_evaluation(spec.by_evaluation),
        **_updates(spec.updates),
        "critic_warmup": spec.critic_warmup_steps,
        "engine_args": arguments,
    }
    if spec.critic_updates is not None:
        section["trainer_config"] = {"critic": _updates(spec.critic_updates)}
    return section


def _by_evaluation(spec: ByEvaluation) -> dict[str, Any]:
    """Returns the sections with decisions based on evaluations; empty without decisions."""
    sections: dict[str, Any] = {}
    if spec.best is not None:
        sections["best_checkpoint"] = _with_metric(spec.best)
    if spec.early_stop is not None:
        sections["early_stop"] = _with_metric(spec.early_stop)
    if spec.rules:
        sections["rules"] = [
            {"metric": rule.figure.name, rule.kind: rule.threshold, "then": rule.then} for rule in spec.rules
        ]
    return sections


def _with_metric(spec: BestSpec | EarlyStopSpec) -> dict[str, Any]:
    """Returns the section of a decision, with the figure's name as `metric`."""
    fields = msgspec.structs.asdict(spec)
    return {"metric": fields.pop("figure").name, **fields}


def _updates(spec: UpdatesSpec) -> dict[str, Any]:
    """Returns the fields of the optimizer steps."""
    return {
        "ppo_epochs": spec.epochs,
        "ppo_mini_batch_size": spec.mini_batch_items or None,
        "shuffle": spec.shuffle,
    }


def policy_section(stage: StageSpec) -> dict[str, Any] | None:
    """Returns section `policy` with arguments; None if naming the policy in a file would change its behaviour."""
    spec = stage.policy
    policy = built_in(spec.kind)
    # Clients of a server have no staleness bound: naming the policy, though allowed in a file, would impose a bound.
    if stage.serving is not None and spec.max_uses == 1 and keeps_bound(spec.kind) and not spec.bounded:
        return None
    section: dict[str, Any] = {"kind": spec.kind} if policy is not None else {"kind": "plugin", "name": spec.kind}
    # Experiences used more than once are bounded only at a file's request.
    if spec.bounded or not keeps_bound(spec.kind):
        section["max_staleness"] = spec.max_staleness_versions
    section["min_group_members"] = spec.min_group_members
    if policy is None:
        return {**section, "args": spec.args}
    for field in fields_of(policy):
        argument = spec.args.get(field.name, field.default)
        if argument is not msgspec.NODEFAULT:
            section[field.name] = msgspec.to_builtins(argument)
    return section


def replay_buffer(spec: PolicySpec) -> dict[str, Any]:
    """Returns section `replay_buffer`: the priority function with arguments, and the cooldown before reuse of an
    experience.
    """
    if not spec.evict_when_full:
        return {"enable": False}
    return {
        "enable": True,
        "priority_fn": spec.priority.kind,
        "priority_fn_args": with_defaults(PRIORITIES, spec.priority.kind, spec.priority.args),
        "reuse_cooldown_time": None if spec.max_uses == 1 and not spec.cooldown_s else spec.cooldown_s,
    }
