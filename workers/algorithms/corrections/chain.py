"""`Chain`: the corrections of one objective, and which log-probabilities its ratio is taken to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rftd.ops.errors import ConfigError
from rftd.streams.spec import CorrectionSpec
from rftd.workers.algorithms.batch_tokens import BatchTokens
from rftd.workers.algorithms.corrections.correction import Corrected, Correction, Mismatch
from rftd.workers.algorithms.corrections.registry import CORRECTIONS
from rftd.workers.algorithms.policy_losses.policy_loss import LOG_RATIO_LIMIT, LossTokens

if TYPE_CHECKING:
    from torch import Tensor

OLD_LOGPROBS = ("rollout", "recomputed", "approximated")
"""The proximal policy is that of the rollouts; that before the step; or between them, by each token's version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """Multipliers are multiplied, and a token counts if every mask keeps it. Rows of a dataset are never corrected."""

    old_logprobs: str = "rollout"
    parts: tuple[Correction, ...] = ()

    @classmethod
    def of(cls, spec: CorrectionSpec, own: tuple[Correction, ...] = ()) -> Chain:
        """Makes the parts, beside those that the policy loss is defined by.

        Raises ConfigError for an unknown name, arguments that do not fit, or a ratio twice.
        """
        if spec.old_logprobs not in OLD_LOGPROBS:
            raise ConfigError(
                f"unknown old log-probabilities {spec.old_logprobs!r}",
                field="algorithm.rollout_correction.old_logprobs",
                fix=f"one of {', '.join(OLD_LOGPROBS)}",
            )
        parts = tuple(CORRECTIONS.open(part.kind, part.args) for part in spec.parts)
        if spec.old_logprobs == "rollout" and any(part.weighs for part in parts):
            raise ConfigError(
                "with the rollouts' log-probabilities as the old ones the policy loss contains the ratio to the "
                "rollouts already, and a multiplier would count it twice",
                field="algorithm.rollout_correction.old_logprobs",
                fix="use recomputed or approximated, or leave multipliers (decoupled, tis, icepop) out",
            )
        return cls(old_logprobs=spec.old_logprobs, parts=(*own, *parts))

    @property
    def plain(self) -> bool:
        """True if it changes nothing."""
        return self.old_logprobs == "rollout" and not self.parts

    @property
    def whole_batch(self) -> bool:
        """True if some part must see the whole batch before the step."""
        return any(part.whole_batch for part in self.parts)

    def of_batch(self, batch: BatchTokens) -> Corrected:
        """What the parts give that must see the whole batch, which was computed under the weights before the step."""
        assert batch.logprobs is not None
        whole = [part for part in self.parts if part.whole_batch]
        return self._corrected(
            whole,
            now=batch.logprobs,
            rollout=batch.old_logprobs,
            versions=batch.versions,
            version=batch.version,
            advantages=batch.advantages,
            expert=batch.expert,
            sequence=batch.sequence,
            sequences=batch.sequences,
        )

    def applied(self, tokens: LossTokens) -> LossTokens:
        """The tokens with the proximal log-probabilities as the old ones, multiplier and mask.

        There is one optimizer step for each batch, so the weights before the step are those of this forward pass:
        recomputed log-probabilities cost nothing.
        """
        if self.plain:
            return tokens
        now, rollout = tokens.logprobs.detach(), tokens.old_logprobs
        made = self._corrected(
            [part for part in self.parts if not part.whole_batch],
            now=now,
            rollout=rollout,
            versions=tokens.versions,
            version=tokens.version,
            advantages=tokens.advantages,
            expert=tokens.expert,
            sequence=tokens.sequence,
            sequences=tokens.sequences,
        )
        return replace(
            tokens,
            old_logprobs=self._proximal(now, rollout, tokens.versions, tokens.version),
            multiplier=_both(tokens.multiplier, made.multiplier),
            keep=_all(tokens.keep, made.keep),
        )

    def _proximal(self, now: Tensor, rollout: Tensor, versions: Tensor | None, version: int) -> Tensor:
        """log p; approximated: log mu + a (log now - log mu), a = s / (s + 1) for a token drawn s versions ago."""
        if self.old_logprobs == "recomputed":
            return now
        if self.old_logprobs == "rollout":
            return rollout
        if versions is None:
            return rollout
        age = (version - versions).clamp(min=0).to(now.dtype)
        return rollout + age / (age + 1) * (now - rollout)

    def _corrected(
        self,
        parts: Sequence[Correction],
        *,
        now: Tensor,
        rollout: Tensor,
        versions: Tensor | None,
        version: int,
        advantages: Tensor,
        expert: Tensor,
        sequence: Tensor,
        sequences: int,
    ) -> Corrected:
        if not parts:
            return Corrected()
        # Masks ask how far the weights are from those that drew the token, also where the loss takes those as old.
        proximal = now if self.old_logprobs == "rollout" else self._proximal(now, rollout, versions, version)
        drawn = ~expert
        places = drawn.nonzero()[:, 0]
        seen = Mismatch(
            proximal=proximal[places],
            rollout=rollout[places],
            log_ratio=(proximal - rollout)[places].clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT),
            advantages=advantages[places],
            sequence=sequence[places],
            sequences=sequences,
        )
        multiplier: Tensor | None = None
        keep: Tensor | None = None
        for part in parts:
            made = part.correct(seen)
            multiplier, keep = _both(multiplier, made.multiplier), _all(keep, made.keep)
        return Corrected(
            multiplier=None if multiplier is None else now.new_ones(now.shape).index_copy(0, places, multiplier),
            keep=None if keep is None else (expert | expert.index_copy(0, places, keep)),
        )


def _both(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one * other


def _all(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one & other
