"""Section `algorithm`: the objective, and corrections for tokens sampled by older weights (`rollout_correction`).

The fields of a built-in correction are the declared arguments (`workers/learning/corrections`), with defaults and
bounds: a new correction needs no change here. verl's fields act as in verl.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, cast, get_type_hints

from pydantic import Field, create_model

from rftd.daemon.config.schema.section import (
    Args,
    Count,
    NumberOrText,
    Section,
    any_of,
    argument_field,
    declared,
    refused,
    section,
    word,
)
from rftd.streams.spec.declaration import ARGUMENTS, PLAIN, PLUGIN, Upstream
from rftd.streams.spec.sections import Optimizer
from rftd.workers.learning.corrections.registry import CORRECTIONS

LaidOver: TypeAlias = Annotated[Args, Upstream("Replaces the function's defaults.")]
"""Overrides for the part's default arguments."""


class AnyCorrection(Section):
    """An entry of `corrections`; w is the probability ratio of the proximal policy to the rollout policy."""

    kind: str


class PluginCorrection(AnyCorrection):
    """A third-party correction, named by an entry point in the group `rftd.corrections`."""

    kind: Literal["plugin"]
    name: Annotated[str, PLUGIN]
    """Name of the entry point."""
    args: Annotated[Args, ARGUMENTS] = {}
    """Arguments of the correction."""


def _section_of(kind: str) -> type[AnyCorrection]:
    """Returns the section of one kind, made from the declared arguments of the correction."""
    factory = CORRECTIONS.load(kind)
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory, include_extras=True)
    fields: dict[str, Any] = {
        parameter.name: argument_field(
            hints[parameter.name], ... if parameter.default is parameter.empty else parameter.default
        )
        for parameter in inspect.signature(factory).parameters.values()
    }
    fields["kind"] = (Literal[kind], ...)
    name = f"{kind.capitalize()}Correction"
    return cast(type[AnyCorrection], create_model(name, __base__=AnyCorrection, __doc__=factory.__doc__, **fields))


CORRECTION_KINDS: Final[dict[str, type[AnyCorrection]]] = {
    **{kind: _section_of(kind) for kind in CORRECTIONS.ours()},
    "plugin": PluginCorrection,
}
"""Sections of corrections, by kind."""


if TYPE_CHECKING:
    Correction: TypeAlias = AnyCorrection
else:
    Correction = any_of(CORRECTION_KINDS)


class RolloutCorrection(Section):
    """verl's fields act as in verl; `old_logprobs` and `corrections` are rftd only. w = proximal / rollout."""

    rollout_is: Annotated[Literal["token", "sequence"] | None, word()] = None
    """Level of importance weighting by w: `token` or `sequence`; none: no weighting."""
    rollout_is_threshold: Annotated[NumberOrText, PLAIN] = 2.0
    """Upper bound of the weight. A number: larger weights are truncated (TIS). `low_high`: weights outside are 0
    (IcePop)."""
    rollout_is_batch_normalize: bool = False
    """true: divide the weights by their mean over the batch."""
    rollout_rs: Annotated[str | None, PLAIN] = None
    """Rejection criteria, comma-separated: token_k1..k3, seq_sum_k1..k3, seq_mean_k1..k3, seq_max_k2..k3."""
    rollout_rs_threshold: Annotated[NumberOrText | None, PLAIN] = None
    """One threshold for all criteria, or one per criterion, comma-separated; for k1 `low_high`, or only the upper
    bound."""
    bypass_mode: Annotated[bool | None, Upstream("verl's default is false.")] = None
    """true: the old log-probabilities are those of the rollout; false: they are recomputed; none: as set by
    `bypass_old_logprobs` if present, otherwise recomputed."""
    loss_type: Annotated[Literal["ppo_clip", "reinforce"], word()] = "ppo_clip"
    """Loss with `bypass_mode`: PPO's clipped ratio, or REINFORCE, with the ratio only as a weight."""
    old_logprobs: Annotated[Literal["rollout", "recomputed", "approximated"] | None, word()] = None
    """rftd only: log-probabilities in the denominator of the loss's ratio; overrides `bypass_mode`."""
    corrections: list[Correction] = []
    """rftd only: corrections applied together; weights are multiplied, and a token is trained only if no mask removes
    it."""


if not TYPE_CHECKING:
    # A section with the attributes of the declaration.
    Optimizer = declared(Optimizer)


class Algorithm(Section):
    """`algorithm`; parts that are not set have the algorithm's defaults."""

    algorithm_type: Annotated[str, word(), PLUGIN] = "ppo"
    """The algorithm; sets the default of every part below."""
    repeat_times: Annotated[Count | None, Upstream("The guide's default is 1, and 2 for dpo.")] = None
    """Rollouts per task; together they form a group. None: the algorithm's default."""
    optimizer: Optimizer = section(Optimizer)
    sample_strategy: Annotated[
        str | None, word(warmup="default"), Upstream("`default` is called `warmup` in the guide's release."), PLUGIN
    ] = None
    """Composition of batches: `default`, `staleness_control`, or `mix` with expert rows; none: the algorithm's
    default."""
    sample_strategy_args: Annotated[LaidOver | None, ARGUMENTS] = None
    """Arguments of `sample_strategy`, merged over its defaults."""
    advantage_fn: Annotated[str | None, word(), PLUGIN] = None
    """Function that computes advantages from rewards; none: the algorithm's default."""
    advantage_fn_args: Annotated[LaidOver | None, ARGUMENTS] = None
    """Arguments of `advantage_fn`, merged over its defaults."""
    kl_penalty_fn: Annotated[str | None, word(), PLUGIN] = None
    """Estimator of the KL to the reference that is subtracted from rewards or advantages; none: the algorithm's
    default."""
    kl_penalty_fn_args: Annotated[LaidOver | None, ARGUMENTS] = None
    """Arguments of `kl_penalty_fn`, such as `kl_coef`, merged over its defaults."""
    kl_penalty_place: Annotated[Literal["after", "before"], word()] = "after"
    """rftd only: `before` subtracts the penalty from rewards before the group is normalised, like verl."""
    policy_loss_fn: Annotated[str | None, word(), PLUGIN] = None
    """The policy loss; none: the algorithm's default."""
    policy_loss_fn_args: Annotated[LaidOver | None, ARGUMENTS] = None
    """Arguments of `policy_loss_fn`, such as its clip range, merged over its defaults."""
    kl_loss_fn: Annotated[str | None, word(), PLUGIN] = None
    """Estimator of the KL to the reference that is added to the loss; none: the algorithm's default."""
    kl_loss_fn_args: Annotated[LaidOver | None, ARGUMENTS] = None
    """Arguments of `kl_loss_fn`, such as `kl_coef`, merged over its defaults."""
    entropy_loss_fn: Annotated[str | None, word(), PLUGIN] = None
    """The entropy bonus; none: the algorithm's default."""
    entropy_loss_fn_args: Annotated[LaidOver | None, ARGUMENTS] = None
    """Arguments of `entropy_loss_fn`, such as `entropy_coef`, merged over its defaults."""
    loss_agg_mode: Annotated[
        Annotated[Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"], word()]
        | None,
        Upstream("Defaults to `token-mean` for every algorithm."),
    ] = None
    """Aggregation of token losses; none: the algorithm's default."""
    loss_scale_factor: Annotated[float | None, Field(gt=0)] = None
    """Divisor of `seq-mean-token-sum-norm`."""
    enable_router_replay: bool = refused(False, why="routed experts are not recorded")
    bypass_old_logprobs: bool = True
    """true: the ratio of the loss is relative to the weights that sampled the token; false: to the weights before the
    step."""
    rollout_correction: RolloutCorrection | None = None
