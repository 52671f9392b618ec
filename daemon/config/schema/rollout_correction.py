"""`algorithm.rollout_correction`: what is done about tokens that older weights drew. verl's fields, and rftd's own."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from rftd.daemon.config.schema.section import Args, Section, word

Threshold: TypeAlias = Annotated[float, Field(gt=0)]
Low: TypeAlias = Annotated[float, Field(ge=0, le=1)]
High: TypeAlias = Annotated[float, Field(ge=1)]
Level: TypeAlias = Annotated[Literal["token", "sequence", "geometric"], word()]
Over: TypeAlias = Annotated[Literal["token", "sum", "mean", "max"], word()]


class DecoupledCorrection(Section):
    """The loss times w."""

    kind: Literal["decoupled"]
    level: Level = "token"
    cap: High | None = None


class TisCorrection(Section):
    """The loss times w, clamped to [low, high]."""

    kind: Literal["tis"]
    level: Level = "token"
    low: Low = 0.0
    high: High = 2.0
    batch_normalize: bool = False


class IcePopCorrection(Section):
    """The loss times w where it is within [low, high], else nothing."""

    kind: Literal["icepop"]
    level: Level = "token"
    low: Low = 0.5
    high: High = 5.0
    batch_normalize: bool = False


class TokenCorrection(Section):
    """Tokens with w outside [low, high] are left out; low: 1 / high unless given."""

    kind: Literal["token"]
    low: Low | None = None
    high: High = 2.0


class SequenceCorrection(Section):
    """Responses whose product of w is outside [low, high] are left out."""

    kind: Literal["sequence"]
    low: Low | None = None
    high: High = 2.0


class GeometricCorrection(Section):
    """Responses whose geometric mean of w is outside [low, high] are left out."""

    kind: Literal["geometric"]
    low: Low | None = None
    high: High = 1.01


class K2Correction(Section):
    """Tokens or responses whose (log w)² / 2 is over the threshold are left out."""

    kind: Literal["k2"]
    threshold: Threshold
    level: Over = "mean"


class K3Correction(Section):
    """Tokens or responses whose w - log w - 1 is over the threshold are left out."""

    kind: Literal["k3"]
    threshold: Threshold
    level: Over = "mean"


class KPopCorrection(Section):
    """Tokens are left out by the KL divergence of the binary choice "this token, or any other"."""

    kind: Literal["kpop"]
    threshold: Threshold = 0.1


class M2poCorrection(Section):
    """Tokens are left out until the second moment of log w over the batch is within the threshold."""

    kind: Literal["m2po"]
    threshold: Threshold = 0.04
    away_only: bool = True


class OpsmCorrection(Section):
    """Responses with a negative advantage that have drifted by more than delta are left out."""

    kind: Literal["opsm"]
    delta: Threshold = 1e-4


class PluginCorrection(Section):
    """A third party's, by the name of its entry point in the group `rftd.corrections`."""

    kind: Literal["plugin"]
    name: str
    args: Args = {}


CORRECTION_KINDS: Final[dict[str, type[Section]]] = {
    "decoupled": DecoupledCorrection,
    "tis": TisCorrection,
    "icepop": IcePopCorrection,
    "token": TokenCorrection,
    "sequence": SequenceCorrection,
    "geometric": GeometricCorrection,
    "k2": K2Correction,
    "k3": K3Correction,
    "kpop": KPopCorrection,
    "m2po": M2poCorrection,
    "opsm": OpsmCorrection,
    "plugin": PluginCorrection,
}


def _kind(value: Any) -> Any:
    return value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)


AnyCorrection: TypeAlias = Annotated[
    Annotated[DecoupledCorrection, Tag("decoupled")]
    | Annotated[TisCorrection, Tag("tis")]
    | Annotated[IcePopCorrection, Tag("icepop")]
    | Annotated[TokenCorrection, Tag("token")]
    | Annotated[SequenceCorrection, Tag("sequence")]
    | Annotated[GeometricCorrection, Tag("geometric")]
    | Annotated[K2Correction, Tag("k2")]
    | Annotated[K3Correction, Tag("k3")]
    | Annotated[KPopCorrection, Tag("kpop")]
    | Annotated[M2poCorrection, Tag("m2po")]
    | Annotated[OpsmCorrection, Tag("opsm")]
    | Annotated[PluginCorrection, Tag("plugin")],
    Discriminator(_kind),
]
"""A correction of any kind, told apart by `kind`."""


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
    corrections: list[AnyCorrection] = []
