"""The curves on a run's page: a title, a hint at the meaning of a high or low line, and the figures by preference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

Band = Literal["quantiles", "range", "none"]
"""Form of the band around a curve: `quantiles`, `range` from minimum to maximum, or `none`."""


class Curve(NamedTuple):
    """A curve of a run: the script draws the first of its figures on offer; a figure ending in a slash is a prefix."""

    title: str
    """Title above the curve."""
    unit: str
    """Unit or kind of the figures, in words."""
    hint: str
    """Explanation of the curve in words."""
    metrics: tuple[str, ...]
    """Names or prefixes of figures, the preferred one first."""
    colour: Literal["s1", "s2", "s3", "s4", "s5"] = "s1"
    """Colour of the line, from the page's palette."""
    band: Band = "range"
    """Form of the band around the line."""
    log: bool = False
    """True for a logarithmic scale."""
    many: Literal["", "split", "stack"] = ""
    """Figures with the prefix, at most five: a line for each (`split`), or shares on top of each other (`stack`)."""


CURATED: Final = (
    Curve("Reward", "10 to 90 % of rollouts", "Rising means learning", ("reward",), band="quantiles"),
    Curve("Reward parts", "means", "", ("reward/",), band="none", many="split"),
    Curve("Held out", "score", "Rising with the reward: not only the training rows", ("held-out/",), "s3", "none"),
    Curve(
        "Loss",
        "minimised",
        "Not a target: near 0 is normal for GRPO",
        ("actor/final_loss", "actor/sft_loss", "actor/pg_loss", "loss"),
    ),
    Curve(
        "KL",
        "nats",
        "High: far from the reference, or off-policy",
        ("actor/kl_loss", "critic/kl", "actor/ppo_kl"),
        "s2",
        log=True,
    ),
    Curve("Entropy", "nats a token", "An early drop to 0: exploration has collapsed", ("actor/entropy",), "s4"),
    Curve("Clipped tokens", "share", "Above 0.2: updates too large for the staleness", ("actor/pg_clipfrac",), "s2"),
    Curve("Gradient norm", "before clipping", "Lasting spikes: lower the learning rate", ("actor/grad_norm",)),
    Curve("Answer length", "tokens, mean", "At its limit: answers are truncated", ("response_length/mean",), "s3"),
    Curve("Truncated", "share of answers", "Cut answers earn little, teach less", ("signal/answers_cut",), "s2"),
    Curve(
        "Staleness",
        "versions, mean",
        "At its bound: rollouts wait for weights",
        ("staleness_versions/mean", "staleness_mean"),
        "s5",
    ),
    Curve("Trained tokens", "a second", "Dips are checkpoints, publications or waits", ("tokens_per_s",), "s3"),
    Curve("Trainer's time", "shares between steps", "", ("time/",), band="none", many="stack"),
)
"""The curves in reading order."""


def curves_of(further: Sequence[str]) -> list[Curve]:
    """Returns the curated curves, then one for each further figure."""
    return [*CURATED, *(Curve(name, "", "", (name,)) for name in dict.fromkeys(further))]
