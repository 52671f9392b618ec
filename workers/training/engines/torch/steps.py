"""`BatchSteps`: the optimizer steps of one batch, their gradients summed micro-batch by micro-batch.

Masks that choose tokens among all of a step (M2PO, Clip-Cov, KL-Cov) are made in a pass of their own before it. Their
sources (verl, AReaL, the authors of M2PO) choose inside the loss, from one micro-batch. Here they choose from all that
the step sees, so that micro-batches change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.training.corrections.correction import Corrected
from rftd.workers.training.engine import TrainBatch
from rftd.workers.training.engines.torch.batch_pass import BatchPass, batch_pass, carried
from rftd.workers.training.engines.torch.forward import Passed, logprobs_of, loss_tokens
from rftd.workers.training.engines.torch.packing import MicroBatch
from rftd.workers.training.engines.torch.policy import Policy
from rftd.workers.training.engines.torch.stage import Stage
from rftd.workers.training.engines.torch.updates import MiniBatch, Updates
from rftd.workers.training.losses import diagnostics


@dataclass(frozen=True, kw_only=True)
class BatchSteps:
    """The optimizer steps of one batch, packed for its updates, and what holds for all of them."""

    policy: Policy
    stage: Stage
    device: torch.device
    batch: TrainBatch
    updates: Updates
    rate: float
    """The policy's learning rate."""
    kl_coef: float
    penalty_coef: float
    on_change: Callable[[], None]
    """The function that is called after each change of the policy's weights."""

    def take(self) -> tuple[dict[str, float], str]:
        """Takes the steps; returns their figures, and why none was taken, which is empty if one was.

        A mini-batch whose loss or gradient is not finite is left out, weights and optimizer untouched by it.
        """
        with self._autocast():
            known = batch_pass(
                self.policy.model,
                self.stage,
                self.updates.first_epoch,
                self.device,
                version=self._version,
                penalty_coef=self.penalty_coef,
                several_steps=self.updates.several,
                mismatched=self.updates.mismatched,
            )
        optimizer = self.stage.optimizer
        critic = self.stage.critic
        for group in optimizer.param_groups:
            group["lr"] = self.rate
        figures: list[dict[str, float]] = []
        reasons: list[str] = []
        for of_policy, of_critic in zip_longest(self.updates.policy, self.updates.critic):
            if not (_trained(of_policy) or _trained(of_critic)):
                continue
            try:
                found = self._accumulate(of_policy, of_critic, known)
                reason = _why_not_finite(found)
                if reason:
                    # AdamW's moments would keep a NaN for good: it is refused before any optimizer sees it.
                    reasons.append(reason)
                    continue
                figures.append(found)
                if critic is not None and _trained(of_critic):
                    critic.step()
                if self._trains_policy and _trained(of_policy):
                    optimizer.step()
                    self.on_change()
            finally:
                # Also after an error: gradients that stay would be added to those of the next batch.
                optimizer.zero_grad(set_to_none=True)
                if critic is not None:
                    critic.forget()
        if reasons and not figures:
            return {}, reasons[0]
        reported = diagnostics.of_steps(figures or [{"actor/grad_norm": 0.0}]) | known.metrics
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
        return self.stage.trains_policy(self.batch.stage_step)

    def _accumulate(self, policy: MiniBatch | None, critic: MiniBatch | None, known: BatchPass) -> dict[str, float]:
        """Sums the gradients of one step, micro-batch by micro-batch, and clips them; returns the step's figures."""
        reported: dict[str, float] = {}
        of_critic = _trained(critic)
        if self.stage.critic is not None and of_critic:
            with self._autocast():
                reported |= self.stage.critic.accumulate(of_critic, [known.of(micro) for micro in of_critic])
        if policy is None:
            return reported
        if self._trains_policy:
            reported |= self._of_policy(_trained(policy), known)
        reported["actor/grad_norm"] = self._clip(self.stage.spec.algorithm.optimizer.grad_clip)
        return reported

    def _of_policy(self, trained: MiniBatch, known: BatchPass) -> dict[str, float]:
        """Sums the policy's gradients over the micro-batches of one step; returns the step's figures."""
        figures: dict[str, Tensor] = {}
        with self._autocast():
            found = step_pass(self.policy.model, self.stage, trained, known, self.device, version=self._version)
        for micro, passed in zip(trained, found, strict=True):
            with self._autocast():
                tokens = loss_tokens(
                    self.policy.model,
                    self.stage.reference,
                    micro,
                    self.device,
                    stage_step=self.batch.stage_step,
                    version=self._version,
                    passed=passed,
                )
            # Outside autocast: log-probabilities are float32, and the loss's sums over thousands of tokens stay so.
            weights = micro.weights.map(lambda each: to_device(each, self.device))
            loss, terms = self.stage.objective.terms(tokens, weights, kl_coef=self.kl_coef)
            # The weights are those of the whole step, so gradients of micro-batches only add up: nothing is divided.
            loss.backward()  # type: ignore[no-untyped-call]
            for name, value in terms.items():
                figures[name] = diagnostics.joined(name, figures[name], value) if name in figures else value
        if not figures:
            return {}
        # One transfer from the device: each float() of a figure would wait for all kernels that are queued.
        values = torch.stack(list(figures.values())).tolist()
        return diagnostics.finished(dict(zip(figures, values, strict=True)))

    def _autocast(self) -> torch.autocast:
        dtype = self.stage.spec.trainer.dtype
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=dtype == "bfloat16")

    def _clip(self, limit: float) -> float:
        """Scales the policy's gradients down to the norm `limit`, if that is above 0; returns the norm before."""
        parameters = [value for value in self.policy.parameters().values() if value.grad is not None]
        norm = torch.nn.utils.get_total_norm([value.grad for value in parameters if value.grad is not None])
        if limit > 0:
            torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        return float(norm)


def _trained(mini_batch: MiniBatch | None) -> MiniBatch:
    """The micro-batches that have trained tokens."""
    return [micro for micro in mini_batch or () if len(micro.targets)]


def _why_not_finite(found: dict[str, float]) -> str:
    """The loss and the norm of the first of policy and critic that are not both finite; empty if all are."""
    for whose, loss_name, norm_name in (
        ("the", "actor/final_loss", "actor/grad_norm"),
        ("the critic's", "critic/vf_loss", "critic/grad_norm"),
    ):
        loss = found.get(loss_name, 0.0)
        norm = found.get(norm_name, 0.0)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return f"{whose} loss is {loss}, its gradient has norm {norm}"
    return ""


@torch.no_grad()
def step_pass(
    model: Any, stage: Stage, packed: Sequence[MicroBatch], known: BatchPass, device: torch.device, *, version: int
) -> list[Passed]:
    """The known values of each micro-batch of one step, with the corrections that must see the whole mini-batch.

    Each of `packed` has trained tokens. If there are such corrections, it costs a forward pass, unless they go by the
    log-probabilities before the batch, which are known then. `version` is that of the weights before the batch.
    """
    passed = [known.of(micro) for micro in packed]
    chain = stage.objective.correction
    if not packed or not chain.whole_mini_batch:
        return passed
    tokens = carried(packed, device, version=version)
    advantages = _joined([each.advantages for each in passed])
    if advantages is not None:
        tokens = replace(tokens, advantages=advantages)
    logprobs = _joined([each.start_logprobs for each in passed])
    if logprobs is None:
        logprobs = torch.cat([logprobs_of(model, micro, device)[0] for micro in packed])
    before = Corrected(
        multiplier=_joined([each.multiplier for each in passed]),
        keep=_joined([each.keep for each in passed]),
        marked=_joined([each.marked for each in passed]),
    )
    made = chain.of_mini_batch(replace(tokens, logprobs=logprobs), before)
    sizes = [len(micro.targets) for micro in packed]
    multipliers, keeps, marks = (_parts(each, sizes) for each in (made.multiplier, made.keep, made.marked))
    return [
        replace(each, multiplier=multiplier, keep=keep, marked=marked)
        for each, multiplier, keep, marked in zip(passed, multipliers, keeps, marks, strict=True)
    ]


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The parts one after the other; None if no part is known: a field is known of all micro-batches or of none."""
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known else None


def _parts(values: Tensor | None, sizes: Sequence[int]) -> Sequence[Tensor | None]:
    if values is None:
        return [None] * len(sizes)
    parts: Sequence[Tensor] = torch.split(values, list(sizes))
    return parts
