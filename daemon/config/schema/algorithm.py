"""Section `algorithm`: the objective, and what is done about tokens that older weights drew (`rollout_correction`).

The fields of a correction of ours are the arguments that it declares (`workers/training/corrections`), with their
defaults and bounds: nothing is written here when one is added. verl's fields act as there.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, cast, get_type_hints

from pydantic import Field, create_model

from rftd.daemon.config.schema.section import (
    Args,
    Count,
    InUnit,
    NumberOrText,
    Section,
    Share,
    any_of,
    argument_field,
    refused,
    section,
    word,
)
from rftd.workers.training.corrections.registry import CORRECTIONS


class AnyCorrection(Section):
    """One of `corrections`: w is the ratio of the proximal policy to that of the rollout."""

    kind: str


class PluginCorrection(AnyCorrection):
    """A third party's, by the name of its entry point in the group `rftd.corrections`."""

    kind: Literal["plugin"]
    name: str
    args: Args = {}


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
    rollout_is_threshold: NumberOrText = 2.0
    """A number: truncated there (tis). `low_high`: nothing outside (icepop)."""
    rollout_is_batch_normalize: bool = False
    rollout_rs: str | None = None
    """Criteria by commas: token_k1..k3, seq_sum_k1..k3, seq_mean_k1..k3, seq_max_k2..k3."""
    rollout_rs_threshold: NumberOrText | None = None
    """A threshold for all criteria, or one for each, by commas; for k1 `low_high`, or high alone."""
    bypass_mode: bool | None = None
    loss_type: Annotated[Literal["ppo_clip", "reinforce"], word()] = "ppo_clip"
    old_logprobs: Annotated[Literal["rollout", "recomputed", "approximated"] | None, word()] = None
    corrections: list[Correction] = []


class Optimizer(Section):
    """`algorithm.optimizer`; it reaches the actor only."""

    lr: Annotated[float, Field(ge=0, le=1)] = 1e-6
    lr_warmup_steps: Annotated[int, Field(ge=-1, le=10**9), InUnit("steps")] = -1
    """-1: the ratio counts."""
    lr_warmup_steps_ratio: Share = 0.0
    min_lr_ratio: Share = 0.01
    lr_scheduler_type: Annotated[Literal["constant", "cosine"], word()] = "constant"
    optimizer_type: Annotated[Literal["adam", "adamw", "sgd"], word()] = "adam"
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)] = [0.9, 0.999]
    eps: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """rftd's own: Adam's, which is added to the root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.01
    decay_all: bool = False
    """rftd's own: decay norms, biases and whatever has one dimension too."""
    clip_grad: Annotated[float, Field(gt=0)] = 1.0


class Algorithm(Section):
    """`algorithm`; a part that is not given is the default of the type."""

    algorithm_type: Annotated[str, word()] = "ppo"
    repeat_times: Count | None = None
    """None: the type's; Trinity-RFT's is always 1."""
    optimizer: Optimizer = section(Optimizer)
    sample_strategy: Annotated[str | None, word(warmup="default")] = None
    sample_strategy_args: Args | None = None
    advantage_fn: Annotated[str | None, word()] = None
    advantage_fn_args: Args | None = None
    """Laid over the function's own, as those of the other functions are; Trinity-RFT puts them in their place."""
    kl_penalty_fn: Annotated[str | None, word()] = None
    kl_penalty_fn_args: Args | None = None
    kl_penalty_place: Annotated[Literal["after", "before"], word()] = "after"
    """rftd's own: `before` takes the penalty from rewards before a group's normalisation, as verl does."""
    policy_loss_fn: Annotated[str | None, word()] = None
    policy_loss_fn_args: Args | None = None
    kl_loss_fn: Annotated[str | None, word()] = None
    kl_loss_fn_args: Args | None = None
    entropy_loss_fn: Annotated[str | None, word()] = None
    entropy_loss_fn_args: Args | None = None
    loss_agg_mode: (
        Annotated[Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"], word()]
        | None
    ) = None
    loss_scale_factor: Annotated[float | None, Field(gt=0)] = None
    """The divisor of `seq-mean-token-sum-norm`."""
    enable_router_replay: bool = refused(False, why="the experts that a token took are not recorded")
    bypass_old_logprobs: bool = True
    rollout_correction: RolloutCorrection | None = None
