"""`algorithm.rollout_correction`: what is done about tokens that older weights drew. verl's fields, and rftd's own.

The fields of a correction of ours are the arguments that it declares (`workers/training/corrections`), with their
defaults and bounds: nothing is written here when one is added.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, cast, get_type_hints

from pydantic import create_model

from rftd.daemon.config.schema.section import Args, Section, any_of, argument_field, word
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
    rollout_is_threshold: float | str = 2.0
    """A number: truncated there (tis). `low_high`: nothing outside (icepop)."""
    rollout_is_batch_normalize: bool = False
    rollout_rs: str | None = None
    """Criteria by commas: token_k1..k3, seq_sum_k1..k3, seq_mean_k1..k3, seq_max_k2..k3."""
    rollout_rs_threshold: float | str | None = None
    """A threshold for all criteria, or one for each, by commas; for k1 `low_high`, or high alone."""
    bypass_mode: bool | None = None
    loss_type: Annotated[Literal["ppo_clip", "reinforce"], word()] = "ppo_clip"
    old_logprobs: Annotated[Literal["rollout", "recomputed", "approximated"] | None, word()] = None
    corrections: list[Correction] = []
