"""Advantages by a teacher's log-probabilities: on-policy distillation and the Jensen-Shannon divergence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rftd.ops.errors import ConfigError
from rftd.workers.learning.algorithms.advantages.none import NoAdvantage
from rftd.workers.learning.losses.policy_loss import LOG_RATIO_LIMIT
from rftd.workers.learning.token_advantages.returns import check_not_negative, check_share
from rftd.workers.learning.token_advantages.token_advantage import PassField

if TYPE_CHECKING:
    from torch import Tensor

    from rftd.workers.learning.losses.batch_tokens import BatchTokens


@dataclass(frozen=True, kw_only=True)
class OnPolicyDistillAdvantage(NoAdvantage):
    """The advantage is kl_coef (teacher - old), of log-probabilities: the reverse KL, token by token. Rewards play no
    part.

    Source: Agarwal et al. 2024, GKD, arXiv 2306.13649; as in Trinity-RFT.
    """

    kl_coef: float = 1.0
    """Coefficient of the advantage."""

    def __post_init__(self) -> None:
        check_not_negative("kl_coef", self.kl_coef)

    @property
    def needs(self) -> frozenset[PassField]:
        """The field needed of the batch: the teacher's log-probabilities."""
        return frozenset({"teacher_logprobs"})

    def token_advantages(self, batch: BatchTokens) -> Tensor:
        """Returns kl_coef (teacher - old logprob) at each token, not whitened, so that the sign is the teacher's
        preference  # [N]
        """
        assert batch.teacher_logprobs is not None, "on_policy_distill was not given the log-probabilities of a teacher"
        return self.kl_coef * (batch.teacher_logprobs - batch.old_logprobs)


FORMS = ("published", "gradient")
"""The values of `JsdAdvantage.form`."""


@dataclass(frozen=True, kw_only=True)
class JsdAdvantage(NoAdvantage):
    """The advantage is -kl_coef (1 - lambda) (s - M), M = log(lambda e^t + (1 - lambda) e^s): the policy gradient of
    the divergence lambda KL(teacher, mixture) + (1 - lambda) KL(student, mixture); t and s are log-probabilities of the
    two.

    Its ends are the plain divergences, unscaled: lambda 0 takes e^(t - s) - 1, which follows the forward KL (teacher
    to student) downhill; lambda 1 takes t - s, which follows the reverse KL. Rewards play no part.
    Source: Agarwal et al. 2024, arXiv 2306.13649, equation 1, with its beta as lambda.
    """

    kl_coef: float = 1.0
    """Coefficient of the advantage."""
    lambda_coef: float = 0.5
    """Weight of the teacher in the mixture."""
    temperature: float | None = None
    """The divisor of all log-probabilities; None: 1."""
    chunk_size: object = None
    """No effect: nothing computed here is as large as a vocabulary."""
    form: str = "gradient"
    """`gradient` follows the divergence downhill. `published`, Trinity-RFT's -kl_coef (lambda (t - M) + (1 - lambda)
    (s - M)), is never negative where 0 < lambda < 1: it raises the likelihood of tokens that the two disagree on. At
    lambda 0 it is t - s, and at lambda 1 s - t, which trains away from the teacher."""

    def __post_init__(self) -> None:
        check_not_negative("kl_coef", self.kl_coef)
        check_share("lambda_coef", self.lambda_coef)
        if self.temperature is not None and not self.temperature > 0:
            raise ConfigError(
                f"temperature is {self.temperature}", field="advantage_fn_args.temperature", fix="use one above 0"
            )
        if self.form not in FORMS:
            raise ConfigError(f"form is {self.form!r}", field="advantage_fn_args.form", fix=f"use {' or '.join(FORMS)}")

    @property
    def needs(self) -> frozenset[PassField]:
        """The field needed of the batch: the teacher's log-probabilities."""
        return frozenset({"teacher_logprobs"})

    def token_advantages(self, batch: BatchTokens) -> Tensor:
        """Returns the advantage of each token in the chosen `form`, not whitened, so that the sign is the teacher's
        preference  # [N]
        """
        assert batch.teacher_logprobs is not None, "jsd was not given the log-probabilities of a teacher"
        share = self.lambda_coef
        heat = self.temperature or 1.0
        teacher = batch.teacher_logprobs / heat
        student = batch.old_logprobs / heat
        if self.form == "published":
            return -self.kl_coef * self._divergence(teacher, student)
        if share == 0:
            # expm1 of a clamped difference: e^x - 1 loses its digits near 0, and overflows where the teacher finds a
            # token far likelier.
            return self.kl_coef * (teacher - student).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).expm1()
        if share == 1:
            return self.kl_coef * (teacher - student)
        return -self.kl_coef * (1 - share) * (student - self._mixture(teacher, student))

    def _mixture(self, teacher: Tensor, student: Tensor) -> Tensor:
        """Returns the log-probabilities of the mixture, M  # [N]"""
        share = self.lambda_coef
        # In logarithms throughout: e^t of a token that the teacher rules out is 0 in float32, and its log minus
        # infinity.
        return (teacher + math.log(share)).logaddexp(student + math.log1p(-share))

    def _divergence(self, teacher: Tensor, student: Tensor) -> Tensor:
        """Returns the divergence at each token as defined by Trinity-RFT  # [N]"""
        share = self.lambda_coef
        if share == 0:
            return student - teacher
        if share == 1:
            return teacher - student
        mixture = self._mixture(teacher, student)
        return share * (teacher - mixture) + (1 - share) * (student - mixture)
