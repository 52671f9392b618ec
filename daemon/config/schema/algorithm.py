"""Section `algorithm`: the objective, and what is done about tokens that older weights drew (`rollout_correction`).

The fields of a correction of ours are the arguments that it declares (`workers/learning/corrections`), with their
defaults and bounds: nothing is written here when one is added. verl's fields act as there.
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
from rftd.streams.spec.optimizer import Optimizer
from rftd.workers.learning.corrections.registry import CORRECTIONS

LaidOver: TypeAlias = Annotated[Args, Upstream("They replace the function's defaults.")]
"""Arguments that are merged over those of what they go to."""


class AnyCorrection(Section):
    """One of `corrections`: w is the ratio of the proximal policy to that of the rollout."""

    kind: str


class PluginCorrection(AnyCorrection):
    """A third party's, by the name of its entry point in the group `rftd.corrections`."""

    kind: Literal["plugin"]
    name: Annotated[str, PLUGIN]
    """The name of the entry point."""
    args: Annotated[Args, ARGUMENTS] = {}
    """Arguments that the correction is made with."""


def _section_of(kind: str) -> type[AnyCorrection]:
    """The section of one kind, made of the arguments that its correction declares."""
    factory = CORRECTIONS.load(kind)
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory, include_extras=True)
    fields: dict[str, Any] = {
        each.name: argument_field(hints[each.name], ... if each.default is each.empty else each.default)
        for each in inspect.signature(factory).parameters.values()
    }
    fields["kind"] = (Literal[kind], ...)
    name = f"{kind.capitalize()}Correction"
    return cast(type[AnyCorrection], create_model(name, __base__=AnyCorrection, __doc__=factory.__doc__, **fields))


CORRECTION_KINDS: Final[dict[str, type[AnyCorrection]]] = {
    **{kind: _section_of(kind) for kind in CORRECTIONS.ours()},
    "plugin": PluginCorrection,
}


if TYPE_CHECKING:
    Correction: TypeAlias = AnyCorrection
else:
    Correction = any_of(CORRECTION_KINDS)


class RolloutCorrection(Section):
    """verl's fields act as there; `old_logprobs` and `corrections` are rftd's own. w = proximal / rollout."""

    rollout_is: Annotated[Literal["token", "sequence"] | None, word()] = None
    """The level at which the loss is multiplied by w: of each token, or of a whole response; none: not at all."""
    rollout_is_threshold: Annotated[NumberOrText, PLAIN] = 2.0
    """The bound of that multiplier. A number: truncated there (tis). `low_high`: nothing outside (icepop)."""
    rollout_is_batch_normalize: bool = False
    """True: multipliers are divided by their mean over the batch."""
    rollout_rs: Annotated[str | None, PLAIN] = None
    """The criteria of what is left out, by commas: token_k1..k3, seq_sum_k1..k3, seq_mean_k1..k3, seq_max_k2..k3."""
    rollout_rs_threshold: Annotated[NumberOrText | None, PLAIN] = None
    """A threshold for all criteria, or one for each, by commas; for k1 `low_high`, or high alone."""
    bypass_mode: Annotated[bool | None, Upstream("verl's default is false.")] = None
    """True: the old log-probabilities are the rollouts'; false: recomputed ones; none: as `bypass_old_logprobs` says,
    if it is written, else recomputed."""
    loss_type: Annotated[Literal["ppo_clip", "reinforce"], word()] = "ppo_clip"
    """The loss with `bypass_mode`: PPO's clipped ratio, or REINFORCE, where the ratio is a weight alone."""
    old_logprobs: Annotated[Literal["rollout", "recomputed", "approximated"] | None, word()] = None
    """rftd only: the log-probabilities that the loss takes its ratio to; it wins over `bypass_mode`."""
    corrections: list[Correction] = []
    """rftd only: corrections that are applied together; multipliers are multiplied, and every mask must keep a
    token."""


if not TYPE_CHECKING:
    # A section, which has the attributes of its declaration.
    Optimizer = declared(Optimizer)


class Algorithm(Section):
    """`algorithm`; a part that is not given is the default of the type."""

    algorithm_type: Annotated[str, word(), PLUGIN] = "ppo"
    """The algorithm, which sets the default of every part below."""
    repeat_times: Annotated[Count | None, Upstream("The guide's default is 1, and 2 for dpo.")] = None
    """Rollouts of one task, which form a group; none: the algorithm's own."""
    optimizer: Optimizer = section(Optimizer)
    sample_strategy: Annotated[
        str | None, word(warmup="default"), Upstream("The guide's release calls `default` `warmup`."), PLUGIN
    ] = None
    """The making of a batch: `default`, `staleness_control`, or `mix` with rows of an expert; none: the
    algorithm's."""
    sample_strategy_args: Annotated[LaidOver | None, ARGUMENTS] = None
    """Arguments of `sample_strategy`, merged over its defaults."""
    advantage_fn: Annotated[str | None, word(), PLUGIN] = None
    """The function that makes advantages of rewards; none: the algorithm's."""
    advantage_fn_args: Annotated[LaidOver | None, ARGUMENTS] = None
    """Arguments of `advantage_fn`, merged over its defaults."""
    kl_penalty_fn: Annotated[str | None, word(), PLUGIN] = None
    """The estimate of the KL to the reference that is taken from rewards or advantages; none: the algorithm's."""
    kl_penalty_fn_args: Annotated[LaidOver | None, ARGUMENTS] = None
    """Arguments of `kl_penalty_fn`, such as `kl_coef`, merged over its defaults."""
    kl_penalty_place: Annotated[Literal["after", "before"], word()] = "after"
    """rftd only: `before` takes the penalty from rewards before a group's normalisation, as verl does."""
    policy_loss_fn: Annotated[str | None, word(), PLUGIN] = None
    """The policy loss; none: the algorithm's."""
    policy_loss_fn_args: Annotated[LaidOver | None, ARGUMENTS] = None
    """Arguments of `policy_loss_fn`, such as its clip range, merged over its defaults."""
    kl_loss_fn: Annotated[str | None, word(), PLUGIN] = None
    """The estimate of the KL to the reference that is added to the loss; none: the algorithm's."""
    kl_loss_fn_args: Annotated[LaidOver | None, ARGUMENTS] = None
    """Arguments of `kl_loss_fn`, such as `kl_coef`, merged over its defaults."""
    entropy_loss_fn: Annotated[str | None, word(), PLUGIN] = None
    """The loss that rewards entropy; none: the algorithm's."""
    entropy_loss_fn_args: Annotated[LaidOver | None, ARGUMENTS] = None
    """Arguments of `entropy_loss_fn`, such as `entropy_coef`, merged over its defaults."""
    loss_agg_mode: Annotated[
        Annotated[Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"], word()]
        | None,
        Upstream("Not written, it is `token-mean` for every algorithm."),
    ] = None
    """The way in which losses of tokens become one; none: the algorithm's."""
    loss_scale_factor: Annotated[float | None, Field(gt=0)] = None
    """The divisor of `seq-mean-token-sum-norm`."""
    enable_router_replay: bool = refused(False, why="the experts that a token took are not recorded")
    bypass_old_logprobs: bool = True
    """True: the loss takes its ratio to the weights that sampled the token; false: to those before the step."""
    rollout_correction: RolloutCorrection | None = None
