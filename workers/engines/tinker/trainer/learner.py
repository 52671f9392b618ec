"""`TinkerLearner`: log-probabilities from the service, and gradients back to the service.

An objective is a function of the log-probabilities of the trained tokens. The service returns them (`forward`), the
loss is computed here, and its derivative by each goes back as the weight of that token's cross-entropy: the gradient of
sum(-w logprob) with w = -dC/dlogprob equals the gradient of C. Nothing leaves this process before everything is known
to be finite, and then the gradient is sent together with the optimizer step. Where the service has the same loss, one
pass is enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rftd.ops.errors import TrainError, WorkError
from rftd.streams.spec.sections import Optimizer
from rftd.workers.engines.tinker.answers import logprobs_of, loss_sum_of
from rftd.workers.engines.tinker.service import AdamStep, PassAnswer, TokenRow, TrainingRun
from rftd.workers.engines.tinker.trainer.own_losses import ServiceLoss
from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.losses.aggregation import Aggregation
from rftd.workers.learning.stage.learner import PolicyLossOver, PolicyValues, TokenValues
from rftd.workers.learning.stage.micro_batch import MicroBatch, StepSums
from rftd.workers.learning.token_advantages.token_advantage import PassField

_AGREE: Final = 1e-3
"""Largest relative difference between the service's loss and the loss computed here: the service uses half precision.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRows(MicroBatch):
    """The samples of one optimizer step; the service divides them as it likes."""

    samples: tuple[TrainSample, ...] = field(repr=False)
    """All samples of the step."""

    def rows(self, **columns: NDArray[np.float32]) -> list[TokenRow]:
        """Returns the sequences with trained tokens in the service's form, with these columns  # [N] each"""
        token_rows = []
        for number, trained in enumerate(self.counts()):
            if not trained:
                continue
            own_tokens = self.sequence == number
            sample = self.samples[number]
            tokens = sample.tokens.astype(np.int64)
            positions = self._target_positions(number)
            row_columns: dict[str, NDArray[np.float32]] = {}
            for name, numbers in columns.items():
                row_columns[name] = np.zeros(len(tokens) - 1, np.float32)
                row_columns[name][positions] = numbers[own_tokens]
            token_rows.append(TokenRow(tokens=tokens[:-1], targets=tokens[1:], columns=row_columns))
        return token_rows

    def trained(self, answer: PassAnswer, rows: Sequence[TokenRow]) -> NDArray[np.float32]:
        """Extracts the log-probabilities of the trained tokens from an answer for these rows  # [N]"""
        numbers = np.flatnonzero(self.counts())
        row_logprobs = logprobs_of(answer, rows)
        parts = [
            logprobs[self._target_positions(number)] for number, logprobs in zip(numbers, row_logprobs, strict=True)
        ]
        return np.concatenate([np.zeros(0, np.float32), *parts])

    def _target_positions(self, number: int) -> NDArray[np.int64]:
        """Returns the positions of a sample's trained tokens among the targets of its row."""
        positions: NDArray[np.int64] = self.places[self.sequence == number] + self.samples[number].prompt_tokens - 1
        return positions


class TinkerLearner:
    """Implements `Learner` for one stage, with a training run at the service."""

    critic = None
    """None: the service trains language models only."""
    device = torch.device("cpu")
    """Device of token values and losses: the CPU."""

    def __init__(
        self,
        run: TrainingRun,
        optimizer: Optimizer,
        service_loss: ServiceLoss | None,
        *,
        vocabulary_tokens: int,
        reference: TrainingRun | None,
        stepped: Callable[[], None],
        cleared: Callable[[], TrainingRun],
    ) -> None:
        """`service_loss`: the objective as a loss of the service; `stepped` is called after each optimizer step.

        `cleared` begins a run with the same weights and optimizer, without a gradient. `reference` is an untrained run,
        for objectives with a reference.
        """
        self.vocabulary_tokens = vocabulary_tokens
        self._run = run
        self._reference = reference
        self._optimizer = optimizer
        self._service_loss = service_loss
        self._stepped = stepped
        self._cleared = cleared
        self._clip = 0.0
        self._ready: list[TokenRow] = []
        """Gradient of the next step, not yet sent to the service."""
        self._sent = False
        """True once the service has a gradient without a step."""

    def pack(
        self, samples: Sequence[TrainSample], numbers: Sequence[int], aggregation: Aggregation
    ) -> list[ServiceRows]:
        """Packs all samples at once: the service divides them."""
        if not numbers:
            return []
        chosen = tuple(samples[number] for number in numbers)
        step = StepSums.of(chosen, numbers, aggregation)
        columns = MicroBatch.of(chosen, np.array(numbers, np.int64), range(len(chosen)), step).columns()
        return [ServiceRows(samples=chosen, **columns)]

    def values(self, micro_batches: Sequence[ServiceRows], fields: frozenset[PassField]) -> list[TokenValues]:
        """Returns log-probabilities of policy and reference. Raises TrainError for any other field."""
        if missing := fields - {"logprobs", "ref_logprobs"}:
            raise TrainError(
                f"the Tinker service has no {', '.join(sorted(missing))}",
                fix="train with another engine, such as torch",
            )
        return [
            TokenValues(
                logprobs=torch.from_numpy(self._forward(micro)) if "logprobs" in fields else None,
                ref_logprobs=self._ref_logprobs(micro) if "ref_logprobs" in fields else None,
            )
            for micro in micro_batches
        ]

    def accumulate(
        self, micro_batches: Sequence[ServiceRows], loss: PolicyLossOver, *, reference: bool
    ) -> list[dict[str, Tensor]]:
        """Computes `loss` of each micro-batch; returns each micro-batch's terms. The gradient stays here until the
        step, or at the service if it computed the loss.
        """
        figures = []
        for number, micro in enumerate(micro_batches):
            if self._service_loss is not None:
                logprobs, reported_loss = self._gradient_pass(self._service_loss, micro)
            else:
                logprobs, reported_loss = self._forward(micro), None
            leaf = torch.from_numpy(logprobs).requires_grad_(True)
            compared = self._ref_logprobs(micro) if reference else None
            loss_tensor, terms = loss(number, PolicyValues(logprobs=leaf, entropies=None, ref_logprobs=compared))
            if reported_loss is not None:
                if not math.isfinite(reported_loss):
                    # The gradient may be anything: this figure makes the step be skipped, with the reason.
                    terms = terms | {"actor/final_loss": torch.tensor(reported_loss)}
                else:
                    _check_agrees(reported_loss, float(loss_tensor.detach()))
            else:
                (gradient,) = torch.autograd.grad(loss_tensor, leaf)
                self._ready += micro.rows(weights=-gradient.numpy())
            figures.append(terms)
        # Only now: an error before this line gives the run up, with a better reason than `forget` has.
        self._sent = self._service_loss is not None
        return figures

    def clip(self, limit: float) -> float | None:
        """Lets the service clip the gradient; the norm before is unknown."""
        self._clip = limit
        return None

    def step(self, rate: float) -> None:
        """Takes one step of AdamW at the service. Raises WorkError if a returned figure is not finite: the run is then
        abandoned.
        """
        optimizer = self._optimizer
        adam = AdamStep(
            rate=rate,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            clip=self._clip,
        )
        self._sent = False
        figures = self._run.step(adam, self._ready or None)
        for name, figure in figures.items():
            if isinstance(figure, float) and not math.isfinite(figure):
                raise WorkError(
                    f"the Tinker service took a step that is not finite: {name} is {figure}",
                    field=f"metrics[{name!r}]",
                    fix="nothing: the newest checkpoint is resumed; if this recurs, lower the learning rate",
                )
        self._stepped()

    def forget(self) -> None:
        """Discards the gradient. A gradient already at the service cannot be withdrawn, so a new run continues without
        it.
        """
        self._ready = []
        if self._sent:
            self._sent = False
            self._run = self._cleared()

    def _forward(self, micro: ServiceRows) -> NDArray[np.float32]:
        """Returns the log-probabilities of the trained tokens under the current weights  # [N]"""
        return _logprobs_by(self._run, micro)

    def _ref_logprobs(self, micro: ServiceRows) -> Tensor:
        """Returns the log-probabilities of the trained tokens under the reference  # [N]"""
        assert self._reference is not None, "the objective has no reference"
        return torch.from_numpy(_logprobs_by(self._reference, micro))

    def _gradient_pass(self, loss: ServiceLoss, micro: ServiceRows) -> tuple[NDArray[np.float32], float]:
        """Returns the log-probabilities before the step, and the service's loss."""
        rows = micro.rows(**loss.columns(micro))
        answer = self._run.gradient(rows, loss.name, loss.config)
        return micro.trained(answer, rows), loss_sum_of(answer)


def _logprobs_by(run: TrainingRun, micro: ServiceRows) -> NDArray[np.float32]:
    """Returns the log-probabilities of the trained tokens under the run's current weights  # [N]"""
    rows = micro.rows(weights=np.zeros(len(micro.targets), np.float32))
    return micro.trained(run.forward(rows), rows)


def _check_agrees(reported: float, computed: float) -> None:
    """Raises WorkError if the service's loss differs from the loss computed here, because its objective would be
    another.
    """
    # A different loss of the same name would take a different step, and every figure here would be wrong. Non-finite
    # losses are reported by the step, with the reason.
    if math.isfinite(computed) and not abs(reported - computed) <= _AGREE * max(1.0, abs(computed)):
        raise WorkError(
            f"the Tinker service computed the loss {reported:g}, and by its log-probabilities it is {computed:g}",
            field="metrics['loss:sum']",
            fix="install a release of rftd that knows this service's losses",
        )
