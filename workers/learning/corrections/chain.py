"""`Chain`: all corrections of one objective, and the choice of the old log-probabilities in its ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rftd.ops.errors import ConfigError
from rftd.streams.spec.stage_parts import CorrectionSpec
from rftd.workers.learning.corrections.correction import Corrected, Correction, Mismatch, Scope
from rftd.workers.learning.corrections.registry import CORRECTIONS
from rftd.workers.learning.losses.batch_tokens import BatchTokens
from rftd.workers.learning.losses.policy_loss import LOG_RATIO_LIMIT, LossTokens

if TYPE_CHECKING:
    from torch import Tensor

OLD_LOGPROBS = ("rollout", "recomputed", "approximated")
"""The choices of old log-probabilities: the rollout's; those under the weights before the step; or an interpolation by
each token's age in versions.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """The corrections of an objective, combined: multipliers are multiplied, and a token counts if no mask drops it.
    Dataset rows are never corrected.
    """

    old_logprobs: str = "rollout"
    """Source of the old log-probabilities in the loss: `rollout`, `recomputed` or `approximated`."""
    parts: tuple[Correction, ...] = ()
    """The corrections, in the order of the file."""

    @classmethod
    def of(cls, spec: CorrectionSpec, own: tuple[Correction, ...] = ()) -> Chain:
        """Builds the corrections of a specification, and adds those of the policy loss (`own`).

        Raises ConfigError for an unknown name, unfit arguments, or a ratio that would be applied twice.
        """
        if spec.old_logprobs not in OLD_LOGPROBS:
            raise ConfigError(
                f"unknown old log-probabilities {spec.old_logprobs!r}",
                field="algorithm.rollout_correction.old_logprobs",
                fix=f"one of {', '.join(OLD_LOGPROBS)}",
            )
        parts = tuple(CORRECTIONS.open(correction.kind, correction.args) for correction in spec.parts)
        if spec.old_logprobs == "rollout" and any(correction.weighs for correction in parts):
            raise ConfigError(
                "with the rollouts' log-probabilities as the old ones the policy loss contains the ratio to the "
                "rollouts already, and a multiplier would count it twice",
                field="algorithm.rollout_correction.old_logprobs",
                fix="use recomputed or approximated, or leave multipliers (decoupled, tis, icepop) out",
            )
        return cls(old_logprobs=spec.old_logprobs, parts=(*own, *parts))

    @property
    def plain(self) -> bool:
        """True if the chain changes nothing."""
        return self.old_logprobs == "rollout" and not self.parts

    @property
    def decoupled(self) -> bool:
        """True if the old log-probabilities depend on the weights before the batch."""
        return self.old_logprobs != "rollout"

    @property
    def whole_batch(self) -> bool:
        """True if a correction depends on all tokens of the batch, and is computed before the first step."""
        return any(correction.scope == "batch" for correction in self.parts)

    @property
    def whole_mini_batch(self) -> bool:
        """True if a correction depends on all tokens of an optimizer step, and is computed before each step."""
        return any(correction.scope == "mini_batch" for correction in self.parts)

    def of_batch(self, batch: BatchTokens) -> Corrected:
        """Returns the multipliers and masks of corrections over the complete batch, by the weights before its first
        step.
        """
        return self._correct_batch(batch, "batch")

    def of_mini_batch(self, batch: BatchTokens, before: Corrected) -> Corrected:
        """Returns the multipliers and masks of corrections over all tokens of one step, combined with those of
        `before`.

        `batch.logprobs` are those before the step, or if `decoupled` those before the batch's first step.
        """
        corrected = self._correct_batch(batch, "mini_batch")
        return Corrected(
            multiplier=_product(before.multiplier, corrected.multiplier),
            keep=_conjunction(before.keep, corrected.keep),
            marked=_disjunction(before.marked, corrected.marked),
        )

    def _correct_batch(self, batch: BatchTokens, scope: Scope) -> Corrected:
        """Applies the corrections of one scope to a complete batch, with the weights before the step."""
        assert batch.logprobs is not None
        return self._correct_tokens(
            [correction for correction in self.parts if correction.scope == scope],
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
        """Returns the tokens with the chosen old log-probabilities, multiplier and mask.

        Recomputed log-probabilities are free in a batch's first optimizer step, where the weights are those of this
        forward pass; in later steps `tokens.start_logprobs` has them. With the rollout's log-probabilities as the old
        ones, masks depend on the weights of each step.
        """
        if self.plain:
            return tokens
        # Detached: a correction weighs tokens, and must not be a way by which the loss moves the weights.
        now = tokens.logprobs.detach()
        rollout = tokens.old_logprobs
        if self.decoupled and tokens.start_logprobs is not None:
            now = tokens.start_logprobs
        corrected = self._correct_tokens(
            [correction for correction in self.parts if correction.scope == "response"],
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
            multiplier=_product(tokens.multiplier, corrected.multiplier),
            keep=_conjunction(tokens.keep, corrected.keep),
            marked=_disjunction(tokens.marked, corrected.marked),
        )

    def _proximal(self, now: Tensor, rollout: Tensor, versions: Tensor | None, version: int) -> Tensor:
        """Returns the old log-probabilities by the chain's choice  # [N]

        approximated: log mu + a (log now - log mu), where a = s / (s + 1) for a token drawn s versions ago.
        """
        if self.old_logprobs == "recomputed":
            return now
        if self.old_logprobs == "rollout":
            return rollout
        if versions is None:
            return rollout
        # clamp: no token is newer than the weights that it is compared with; if its event says so, its age is 0.
        age = (version - versions).clamp(min=0).to(now.dtype)
        return rollout + age / (age + 1) * (now - rollout)

    def _correct_tokens(
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
        """Applies `parts` to the tokens that rollouts drew; dataset rows have multiplier 1 and keep their loss."""
        if not parts:
            return Corrected()
        # Masks ask how far the weights are from those that drew the token, also where the loss takes those as old.
        proximal = now if self.old_logprobs == "rollout" else self._proximal(now, rollout, versions, version)
        # Only what rollouts drew: rows of a dataset have no rollout probability that a ratio could be taken to.
        drawn = ~expert
        places = drawn.nonzero()[:, 0]
        mismatch = Mismatch(
            proximal=proximal[places],
            rollout=rollout[places],
            log_ratio=(proximal - rollout)[places].clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT),
            advantages=advantages[places],
            sequence=sequence[places],
            sequences=sequences,
        )
        multiplier: Tensor | None = None
        keep: Tensor | None = None
        marked: Tensor | None = None
        for correction in parts:
            corrected = correction.correct(mismatch)
            multiplier = _product(multiplier, corrected.multiplier)
            keep = _conjunction(keep, corrected.keep)
            marked = _disjunction(marked, corrected.marked)
        return Corrected(
            multiplier=None if multiplier is None else now.new_ones(now.shape).index_copy(0, places, multiplier),
            keep=None if keep is None else (expert | expert.index_copy(0, places, keep)),
            marked=None if marked is None else (drawn & drawn.index_copy(0, places, marked)),
        )


def _product(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Returns the product of two multipliers; None counts as 1."""
    return other if one is None else one if other is None else one * other


def _conjunction(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Returns True where both masks are; None counts as True."""
    return other if one is None else one if other is None else one & other


def _disjunction(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Returns True where either mark is; None counts as False."""
    return other if one is None else one if other is None else one | other
