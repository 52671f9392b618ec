"""`BatchSteps`: the optimizer steps of one batch, with gradients summed over micro-batches.

Masks chosen among all tokens of a step (M2PO, Clip-Cov, KL-Cov) are computed in a pass before the step. verl, AReaL and
the authors of M2PO compute such masks inside the loss, from one micro-batch; computed over the complete step, the masks
do not depend on micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Generic

import torch
from torch import Tensor

from rftd.streams.spec.spec import StageSpec
from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.learning.corrections.correction import Corrected
from rftd.workers.learning.engine import TrainBatch
from rftd.workers.learning.losses import diagnostics
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.losses.policy_loss import Labels, LossTokens, Pairs
from rftd.workers.learning.stage.batch_pass import BatchPass, Passed, batch_pass, carried, joined
from rftd.workers.learning.stage.learner import Learner, M, PolicyValues, Terms, ValueLearner
from rftd.workers.learning.stage.micro_batch import MicroBatch
from rftd.workers.learning.stage.updates import Updates
from rftd.workers.learning.term_notes import TermNotes


@dataclass(frozen=True, kw_only=True)
class BatchSteps(Generic[M]):
    """The optimizer steps of one packed batch, with the learning rates and KL coefficients common to all of them."""

    spec: StageSpec
    """Specification of the stage."""
    objective: Objective
    """Loss of the stage."""
    learner: Learner[M]
    """Models of the stage on the engine."""
    batch: TrainBatch
    """Batch to train."""
    updates: Updates[M]
    """Mini-batches of the batch, packed."""
    rate: float
    """The policy's learning rate."""
    critic_rate: float
    """The critic's learning rate; 0 without a critic."""
    kl_coef: float
    """Coefficient of the KL loss."""
    penalty_coef: float
    """Coefficient of the KL penalty."""
    notes: TermNotes | None = None
    """Receiver of the terms of the objective at each token; None where nobody asks for them."""

    def take(self) -> tuple[dict[str, float], str]:
        """Takes the optimizer steps; returns their figures, and an empty text, or the reason if no step could be taken.

        A mini-batch with a loss or gradient that is not finite is skipped, weights and optimizer untouched.
        """
        whole_batch = batch_pass(
            self.objective,
            self.learner,
            self.updates.first_epoch,
            version=self._version,
            penalty_coef=self.penalty_coef,
            several_steps=self.updates.several,
            mismatched=self.updates.mismatched,
        )
        critic = self.learner.critic
        figures: list[dict[str, float]] = []
        reasons: list[str] = []
        for of_policy, of_critic in zip_longest(self.updates.policy, self.updates.critic):
            if not (_trained(of_policy) or _trained(of_critic)):
                continue
            try:
                step_figures = self._accumulate(of_policy, of_critic, whole_batch)
                reason = _why_not_finite(step_figures)
                if reason:
                    # AdamW's moments would keep a NaN for good: it is refused before any optimizer sees it.
                    reasons.append(reason)
                    continue
                figures.append(step_figures)
                if critic is not None and _trained(of_critic):
                    critic.step(self.critic_rate)
                if self._trains_policy and _trained(of_policy):
                    self.learner.step(self.rate)
            finally:
                # Also after an error: gradients that stay would be added to those of the next batch.
                self.learner.forget()
                if critic is not None:
                    critic.forget()
        if reasons and not figures:
            return {}, reasons[0]
        reported = diagnostics.of_steps(figures or [{"actor/grad_norm": 0.0}]) | whole_batch.metrics
        if self.updates.several:
            reported["actor/optimizer_steps"] = float(len(self.updates.policy))
            reported["actor/nonfinite_mini_batches"] = float(len(reasons))
        return reported, ""

    @property
    def _version(self) -> int:
        """The version of the weights before the batch."""
        return self.batch.step - 1

    @property
    def _trains_policy(self) -> bool:
        """False during the critic's warm-up, when only the critic is trained."""
        return self.learner.critic is None or self.batch.stage_step >= self.spec.trainer.critic_warmup_steps

    def _accumulate(self, policy: list[M] | None, critic: list[M] | None, whole_batch: BatchPass) -> dict[str, float]:
        """Sums the gradients of one step, micro-batch by micro-batch, and clips them; returns the step's figures."""
        reported: dict[str, float] = {}
        if self.learner.critic is not None and _trained(critic):
            reported |= self._of_critic(self.learner.critic, _trained(critic), whole_batch)
        if policy is None:
            return reported
        if self._trains_policy:
            reported |= self._of_policy(_trained(policy), whole_batch)
        norm = self.learner.clip(self.spec.algorithm.optimizer.clip_grad)
        return reported if norm is None else reported | {"actor/grad_norm": norm}

    def _of_policy(self, trained: list[M], whole_batch: BatchPass) -> dict[str, float]:
        """Sums the policy's gradients over the micro-batches of one step; returns the step's figures."""
        passed = step_pass(self.objective, self.learner, trained, whole_batch, version=self._version)

        def loss(number: int, values: PolicyValues) -> Terms:
            micro = trained[number]
            tokens = self._loss_tokens(micro, values, passed[number])
            weights = micro.weights.map(lambda each: to_device(each, self.learner.device))
            if self.notes is not None:
                terms = self.objective.token_terms(tokens, weights, kl_coef=self.kl_coef)
                self.notes.note(micro.members, micro.sequence, micro.places, terms)
            return self.objective.terms(tokens, weights, kl_coef=self.kl_coef)

        reference = self.objective.needs_reference and whole_batch.columns.ref_logprobs is None
        return diagnostics.finished(_summed(self.learner.accumulate(trained, loss, reference=reference)))

    def _of_critic(self, critic: ValueLearner[M], trained: list[M], whole_batch: BatchPass) -> dict[str, float]:
        """Sums the critic's gradients over the micro-batches of one step, and clips them; returns the figures."""

        def loss(number: int, values: Tensor) -> Terms:
            return value_loss(trained[number], values, whole_batch.of(trained[number]), critic.value_clip)

        reported = _summed(critic.accumulate(trained, loss))
        norm = critic.clip(critic.grad_clip)
        return reported | ({} if norm is None else {"critic/grad_norm": norm}) | {"critic/lr": self.critic_rate}

    def _loss_tokens(self, micro: M, found: PolicyValues, passed: Passed) -> LossTokens:
        """The tokens of one micro-batch with all inputs of a loss and the policy's gradient."""
        device = self.learner.device
        return LossTokens(
            logprobs=found.logprobs,
            entropies=found.entropies,
            old_logprobs=to_device(micro.old_logprobs, device),
            ref_logprobs=found.ref_logprobs if passed.ref_logprobs is None else passed.ref_logprobs,
            advantages=to_device(micro.advantages, device) if passed.advantages is None else passed.advantages,
            expert=to_device(micro.expert, device),
            sequence=to_device(micro.sequence, device),
            sequences=micro.sequences,
            stage_step=self.batch.stage_step,
            pairs=_pairs(micro, device),
            labels=_labels(micro, device),
            versions=None if micro.versions is None else to_device(micro.versions, device),
            version=self._version,
            start_logprobs=passed.start_logprobs,
            multiplier=passed.multiplier,
            keep=passed.keep,
            marked=passed.marked,
            reference_kl=passed.reference_kl,
        )


def _pairs(batch: MicroBatch, device: torch.device) -> Pairs | None:
    """Returns the pairs of a micro-batch as tensors; None without pairs."""
    if batch.pairs is None or batch.chosen is None:
        return None
    return Pairs(
        of=to_device(batch.pairs, device),
        chosen=to_device(batch.chosen, device),
        count=batch.sequences // 2,
        in_batch=batch.pairs_in_batch,
    )


def _labels(batch: MicroBatch, device: torch.device) -> Labels | None:
    """Returns the labels of a micro-batch as tensors; None without labels."""
    if batch.chosen is None:
        return None
    return Labels(
        desirable=to_device(batch.chosen, device),
        in_batch=batch.responses_in_batch,
        desirable_in_batch=batch.chosen_in_batch,
    )


def value_loss(micro: MicroBatch, values: Tensor, passed: Passed, clip: float) -> Terms:
    """Returns the clipped loss of the critic's values  # [N] -> [], and its figures.

    Half the mean of max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2), where c is `clip`: Schulman et al. 2017's
    reference code.
    """
    assert passed.values is not None and passed.returns is not None
    returns = passed.returns
    # Around the values of before the batch, whichever step this is: several small steps must not add up to a large
    # one.
    near = values.clamp(passed.values - clip, passed.values + clip)
    plain = (values - returns).square()
    bounded = (near - returns).square()
    weights = to_device(micro.weights.mean, values.device)
    loss = 0.5 * (plain.maximum(bounded) * weights).sum()
    clipped = (bounded > plain).to(weights.dtype)
    return loss, {
        "critic/vf_loss": loss.detach(),
        "critic/vf_clipfrac": (clipped * weights).sum(),
        "critic/vpred_mean": (values.detach() * weights).sum(),
    }


def _summed(parts: Sequence[dict[str, Tensor]]) -> dict[str, float]:
    """Joins the figures of micro-batches into those of one step."""
    figures: dict[str, Tensor] = {}
    for terms in parts:
        for name, value in terms.items():
            figures[name] = diagnostics.joined(name, figures[name], value) if name in figures else value
    if not figures:
        return {}
    # One transfer from the device: each float() of a figure would wait for all kernels that are queued.
    values = torch.stack(list(figures.values())).tolist()
    return dict(zip(figures, values, strict=True))


def _trained(mini_batch: list[M] | None) -> list[M]:
    """Returns the micro-batches with trained tokens."""
    return [micro for micro in mini_batch or () if len(micro.targets)]


def _why_not_finite(figures: dict[str, float]) -> str:
    """Describes the first loss or gradient norm, of policy or critic, that is not finite; empty if all are finite."""
    for whose, loss_name, norm_name in (
        ("the", "actor/final_loss", "actor/grad_norm"),
        ("the critic's", "critic/vf_loss", "critic/grad_norm"),
    ):
        loss = figures.get(loss_name, 0.0)
        norm = figures.get(norm_name, 0.0)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return f"{whose} loss is {loss}, its gradient has norm {norm}"
    return ""


@torch.no_grad()
def step_pass(
    objective: Objective, learner: Learner[M], packed: Sequence[M], whole_batch: BatchPass, *, version: int
) -> list[Passed]:
    """Returns the values for each micro-batch of one step, including corrections computed over the complete mini-batch.

    Each of `packed` has trained tokens. Such corrections cost a forward pass, unless they use the log-probabilities
    from before the batch, which are known then. `version` is the weights' before the batch.
    """
    passed = [whole_batch.of(micro) for micro in packed]
    chain = objective.correction
    if not packed or not chain.whole_mini_batch:
        return passed
    tokens = carried(packed, learner.device, version=version)
    advantages = joined([micro_pass.advantages for micro_pass in passed])
    if advantages is not None:
        tokens = replace(tokens, advantages=advantages)
    logprobs = joined([micro_pass.start_logprobs for micro_pass in passed])
    if logprobs is None:
        logprobs = joined([micro_pass.logprobs for micro_pass in learner.values(packed, frozenset({"logprobs"}))])
    before = Corrected(
        multiplier=joined([micro_pass.multiplier for micro_pass in passed]),
        keep=joined([micro_pass.keep for micro_pass in passed]),
        marked=joined([micro_pass.marked for micro_pass in passed]),
    )
    corrected = chain.of_mini_batch(replace(tokens, logprobs=logprobs), before)
    sizes = [len(micro.targets) for micro in packed]
    multipliers, keeps, marks = (
        _parts(micro_pass, sizes) for micro_pass in (corrected.multiplier, corrected.keep, corrected.marked)
    )
    return [
        replace(micro_pass, multiplier=multiplier, keep=keep, marked=marked)
        for micro_pass, multiplier, keep, marked in zip(passed, multipliers, keeps, marks, strict=True)
    ]


def _parts(values: Tensor | None, sizes: Sequence[int]) -> Sequence[Tensor | None]:
    """Splits values into parts of these sizes; None for each part if there are none."""
    if values is None:
        return [None] * len(sizes)
    parts: Sequence[Tensor] = torch.split(values, list(sizes))
    return parts
