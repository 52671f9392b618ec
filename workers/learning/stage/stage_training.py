"""`StageTraining`: trains the batches of a stage with any engine's learner, each from its checks to its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Generic

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from rftd.ops.errors import ConfigError
from rftd.streams.spec.schedule import rate_steps
from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import StageSpec
from rftd.workers.learning import nonfinite
from rftd.workers.learning.algorithms.advantages.advantage import Remembering
from rftd.workers.learning.engine import StepResult, TrainBatch, TrainSample
from rftd.workers.learning.losses.kl_losses import KlLoss
from rftd.workers.learning.losses.objective import Objective
from rftd.workers.learning.stage.learner import Learner, M
from rftd.workers.learning.stage.steps import BatchSteps
from rftd.workers.learning.stage.trainer_state import TrainerState
from rftd.workers.learning.stage.updates import Updates, check_logprobs, check_tokens
from rftd.workers.learning.term_notes import TermNotes


class StageTraining(Generic[M]):
    """A running stage: its objective, and its progress in `state`."""

    def __init__(
        self, spec: StageSpec, objective: Objective, learner: Learner[M], state: TrainerState, *, seed: int
    ) -> None:
        """`state` is the progress before the next step; `seed` is the experiment's, for the order of mini-batches."""
        self.state = state
        self._spec = spec
        self._objective = objective
        self._learner = learner
        self._seed = seed

    def train(self, batch: TrainBatch, notes: TermNotes | None = None) -> StepResult:
        """Takes the optimizer steps of a batch; takes none, with weights and optimizer untouched, if no step would be
        finite. With `notes`, the terms at each token are noted too.

        Learning rate and KL coefficients are constant within the batch, as in verl: their schedules count batches.
        Raises TrainError for a batch unfit for the model or the objective, NonFiniteLossError after too many
        consecutive batches without a finite step.
        """
        objective = self._objective
        check_tokens(batch, self._learner.vocabulary_tokens)
        remembered = self.state.remembered
        if objective.remembering is not None:
            batch, remembered = relative_batch(objective.remembering, batch, remembered)
        updates = Updates.of(batch, self._spec, objective, self._learner, seed=self._seed)
        if objective.needs_old_logprobs:
            check_logprobs(batch)
        total_steps = rate_steps(self._spec)
        rate = learning_rate(self._spec.algorithm.optimizer, batch.stage_step, total_steps)
        critic = self._learner.critic
        reported: dict[str, float] = {}
        # Before the first forward pass: a NaN among the inputs would name the loss, and not the sample that brought it.
        reason = nonfinite.unusable(batch.samples)
        if not reason:
            steps = BatchSteps(
                spec=self._spec,
                objective=objective,
                learner=self._learner,
                batch=batch,
                updates=updates,
                rate=rate,
                critic_rate=0.0 if critic is None else learning_rate(critic.schedule, batch.stage_step, total_steps),
                kl_coef=self._kl_coef,
                penalty_coef=self._penalty_coef,
                notes=notes,
            )
            reported, reason = steps.take()
        if reason:
            return self._skip(batch, reason, rate)
        reported |= {"actor/lr": rate, "actor/micro_batches": float(updates.micro_batches)}
        if objective.kl.coef > 0:
            reported["actor/kl_coef"] = self._kl_coef
        # Only now: a step that raises leaves the state, like weights and optimizer, to be loaded from the checkpoint.
        self.state = msgspec.structs.replace(
            self.state,
            step=batch.step,
            stage_step=batch.stage_step,
            kl_coef=_next(objective.kl, self._kl_coef, reported.get("actor/kl_loss"), batch),
            kl_penalty_coef=_next(objective.kl_penalty, self._penalty_coef, reported.get("critic/kl"), batch),
            remembered=remembered,
            nonfinite_in_a_row=0,
        )
        reported |= {f"roles/{role or 'model'}/baseline": baseline for role, baseline in remembered.items()}
        return StepResult(tokens=updates.tokens, metrics=batch_figures(batch.samples) | reported)

    def _skip(self, batch: TrainBatch, reason: str, rate: float) -> StepResult:
        """Counts a version with unchanged weights. Raises NonFiniteLossError after too many consecutive ones."""
        in_a_row = self.state.nonfinite_in_a_row + 1
        reason = nonfinite.skipped(in_a_row, self._spec.trainer.max_nonfinite_steps, batch.step, reason)
        self.state = msgspec.structs.replace(
            self.state, step=batch.step, stage_step=batch.stage_step, nonfinite_in_a_row=in_a_row
        )
        figures = {name: value for name, value in batch_figures(batch.samples).items() if math.isfinite(value)}
        figures |= {"actor/lr": rate, "actor/nonfinite_in_a_row": float(in_a_row)}
        return StepResult(tokens=0, metrics=figures, skipped=reason)

    @property
    def _kl_coef(self) -> float:
        """The coefficient of the KL loss for the next step."""
        return self._objective.kl.coef if self.state.kl_coef is None else self.state.kl_coef

    @property
    def _penalty_coef(self) -> float:
        """The coefficient of the KL penalty for the next step."""
        own = self._objective.kl_penalty.coef
        return own if self.state.kl_penalty_coef is None else self.state.kl_penalty_coef


def learning_rate(spec: Optimizer, stage_step: int, total_steps: int) -> float:
    """Returns the learning rate of step `stage_step` (1 is the first) of `total_steps`: a linear warm-up, then constant
    or a cosine.

    The cosine begins with the step that ends the warm-up, at the full rate, and ends with the stage's last step, at the
    minimum.
    """
    if stage_step <= spec.lr_warmup_steps:
        return spec.lr * stage_step / spec.lr_warmup_steps
    if spec.lr_scheduler_type == "constant":
        return spec.lr
    if spec.lr_scheduler_type == "cosine":
        # The step that ends the warm-up has the whole rate; without a warm-up it is the first.
        whole = max(1, spec.lr_warmup_steps)
        progress = min(1.0, (stage_step - whole) / max(1, total_steps - whole))
        return spec.lr * (spec.min_lr_ratio + (1 - spec.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * progress)))
    raise ConfigError(
        f"unknown schedule {spec.lr_scheduler_type!r}",
        field="algorithm.optimizer.lr_scheduler_type",
        fix="use constant or cosine",
    )


def _next(kl: KlLoss, coef: float, found: float | None, batch: TrainBatch) -> float | None:
    """Returns the coefficient of the next step by the KL measured in this batch; None for a constant coefficient."""
    return None if kl.rule is None or found is None else kl.rule.next(coef, found, len(batch.samples))


def relative_batch(
    function: Remembering, batch: TrainBatch, remembered: Mapping[str, float]
) -> tuple[TrainBatch, dict[str, float]]:
    """Returns the batch with the advantages of `function` in its rollouts, and the numbers for the next batch.

    Rows of a dataset, and sequences without a trained token (an agent whose prompt was cut), neither get an advantage
    nor move a baseline.
    """
    numbers = [
        number for number, sample in enumerate(batch.samples) if not sample.expert and bool(sample.loss_mask.any())
    ]
    rollouts = [batch.samples[number] for number in numbers]
    advantages, after = function.relative(
        [sample.role for sample in rollouts], [sample.reward for sample in rollouts], remembered
    )
    samples = list(batch.samples)
    for number, sample, advantage in zip(numbers, rollouts, advantages, strict=True):
        samples[number] = msgspec.structs.replace(
            sample, advantages=np.full(len(sample.loss_mask), advantage, np.float32)
        )
    return msgspec.structs.replace(batch, samples=samples), after


def batch_figures(samples: Sequence[TrainSample]) -> dict[str, float]:
    """Returns the figures of a batch known without the model, under Trinity-RFT's names: lengths, and for rollouts
    rewards, advantages and staleness.
    """
    figures = {
        **_mean_max_min("prompt_length", [sample.prompt_tokens for sample in samples]),
        **_mean_max_min("response_length", [len(sample.loss_mask) for sample in samples]),
    }
    rollouts = [sample for sample in samples if sample.advantages is not None]
    if rollouts:
        trained = np.concatenate([sample.loss_mask for sample in rollouts]) == 1
        advantages = np.concatenate([sample.advantages for sample in rollouts if sample.advantages is not None])
        figures |= _mean_max_min("critic/rewards", [sample.reward for sample in rollouts])
        figures |= _mean_max_min("critic/advantages", advantages[trained])
        figures |= _mean_max_min("staleness_versions", [sample.staleness_versions for sample in rollouts])
    return figures


def _mean_max_min(name: str, values: ArrayLike) -> dict[str, float]:
    """Returns mean, maximum and minimum of values under names beginning with `name`; empty without values."""
    array = np.asarray(values, np.float64)
    if not array.size:
        return {}
    return {f"{name}/mean": float(array.mean()), f"{name}/max": float(array.max()), f"{name}/min": float(array.min())}
