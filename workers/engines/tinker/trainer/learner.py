"""`TinkerLearner`: log-probabilities of the service, and gradients by them back to it.

An objective of ours is a function of the log-probabilities of the trained tokens. The service gives them (`forward`),
the loss is taken here, and its derivative by each goes back as the weight of that token's cross-entropy: the gradient
of sum(-w logprob) with w = -dC/dlogprob is that of C. Nothing of it leaves this process before all of it is known to be
finite, and then it leaves together with the optimizer step. Where the service has the same loss, one pass is enough.
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
from rftd.streams.spec.optimizer import Optimizer
from rftd.workers.engines.tinker.answers import logprobs_of, loss_sum_of
from rftd.workers.engines.tinker.service import AdamStep, PassAnswer, TokenRow, TrainingRun
from rftd.workers.engines.tinker.trainer.own_losses import ServiceLoss
from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.losses.aggregation import Aggregation
from rftd.workers.learning.stage.learner import PolicyLossOver, PolicyValues, TokenValues
from rftd.workers.learning.stage.micro_batch import MicroBatch, StepSums
from rftd.workers.learning.token_advantages.token_advantage import PassField

_AGREE: Final = 1e-3
"""The largest relative difference of the service's own loss from ours: it computes in half precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRows(MicroBatch):
    """The samples of one optimizer step; the service divides them as it likes."""

    samples: tuple[TrainSample, ...] = field(repr=False)

    def rows(self, **columns: NDArray[np.float32]) -> list[TokenRow]:
        """The sequences with trained tokens as the service takes them, with these columns of them  # [N] each"""
        made = []
        for number, trained in enumerate(self.counts()):
            if not trained:
                continue
            own = self.sequence == number
            sample = self.samples[number]
            tokens = sample.tokens.astype(np.int64)
            places = self._places(number)
            each: dict[str, NDArray[np.float32]] = {}
            for name, values in columns.items():
                each[name] = np.zeros(len(tokens) - 1, np.float32)
                each[name][places] = values[own]
            made.append(TokenRow(tokens=tokens[:-1], targets=tokens[1:], columns=each))
        return made

    def trained(self, answer: PassAnswer, rows: Sequence[TokenRow]) -> NDArray[np.float32]:
        """The log-probabilities of the trained tokens in an answer for these rows  # [N]"""
        numbers = np.flatnonzero(self.counts())
        found = logprobs_of(answer, rows)
        parts = [each[self._places(number)] for number, each in zip(numbers, found, strict=True)]
        return np.concatenate([np.zeros(0, np.float32), *parts])

    def _places(self, number: int) -> NDArray[np.int64]:
        """The places of a sample's trained tokens among the targets of its row."""
        places: NDArray[np.int64] = self.places[self.sequence == number] + self.samples[number].prompt_tokens - 1
        return places


class TinkerLearner:
    """Implements `Learner` for one stage on one run."""

    critic = None
    device = torch.device("cpu")

    def __init__(
        self,
        run: TrainingRun,
        optimizer: Optimizer,
        own: ServiceLoss | None,
        *,
        vocabulary_tokens: int,
        reference: TrainingRun | None,
        stepped: Callable[[], None],
        cleared: Callable[[], TrainingRun],
    ) -> None:
        """`own`: the objective as the service computes it; `stepped` is told of each optimizer step.

        `cleared` begins a run with the same weights and optimizer, and without a gradient. `reference` is a run that
        nobody trains, if the objective compares with one.
        """
        self.vocabulary_tokens = vocabulary_tokens
        self._run = run
        self._reference = reference
        self._optimizer = optimizer
        self._own = own
        self._stepped = stepped
        self._cleared = cleared
        self._clip = 0.0
        self._ready: list[TokenRow] = []
        """The gradient of the next step, which the service does not know yet."""
        self._sent = False
        """True once the service has a gradient that no step took."""

    def pack(
        self, samples: Sequence[TrainSample], numbers: Sequence[int], aggregation: Aggregation
    ) -> list[ServiceRows]:
        """All of them at once: the service makes its own parts."""
        if not numbers:
            return []
        chosen = tuple(samples[number] for number in numbers)
        step = StepSums.of(chosen, numbers, aggregation)
        columns = MicroBatch.of(chosen, np.array(numbers, np.int64), range(len(chosen)), step).columns()
        return [ServiceRows(samples=chosen, **columns)]

    def values(self, micro_batches: Sequence[ServiceRows], fields: frozenset[PassField]) -> list[TokenValues]:
        """The policy's log-probabilities. Raises TrainError for what the engine has declared to lack."""
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
        """The figures; the gradient stays here until the step, or where the loss is the service's own, is there."""
        figures = []
        for number, micro in enumerate(micro_batches):
            if self._own is not None:
                logprobs, theirs = self._gradient(self._own, micro)
            else:
                logprobs, theirs = self._forward(micro), None
            leaf = torch.from_numpy(logprobs).requires_grad_(True)
            compared = self._ref_logprobs(micro) if reference else None
            value, terms = loss(number, PolicyValues(logprobs=leaf, entropies=None, ref_logprobs=compared))
            if theirs is not None:
                if not math.isfinite(theirs):
                    # Its gradient may be anything: the step is left out by this figure, with the reason.
                    terms = terms | {"actor/final_loss": torch.tensor(theirs)}
                else:
                    _check_agrees(theirs, float(value.detach()))
            else:
                (gradient,) = torch.autograd.grad(value, leaf)
                self._ready += micro.rows(weights=-gradient.numpy())
            figures.append(terms)
        # Only now: what raised before this line gives the whole run up, and says why better than `forget` could.
        self._sent = self._own is not None
        return figures

    def clip(self, limit: float) -> float | None:
        """Has the service clip; it does not say what the norm was before."""
        self._clip = limit
        return None

    def step(self, rate: float) -> None:
        """One step of AdamW at the service. Raises WorkError if a figure of it is not finite: the run is given up."""
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
        for name, value in figures.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise WorkError(
                    f"the Tinker service took a step that is not finite: {name} is {value}",
                    field=f"metrics[{name!r}]",
                    fix="nothing: training goes on from the newest checkpoint; if it comes again, lower the rate",
                )
        self._stepped()

    def forget(self) -> None:
        """Drops the gradient. If the service has it already, nothing takes it back there: another run goes on."""
        self._ready = []
        if self._sent:
            self._sent = False
            self._run = self._cleared()

    def _forward(self, micro: ServiceRows) -> NDArray[np.float32]:
        return _logprobs_by(self._run, micro)

    def _ref_logprobs(self, micro: ServiceRows) -> Tensor:
        """The log-probabilities of the trained tokens under the reference  # [N]"""
        assert self._reference is not None, "the objective has no reference"
        return torch.from_numpy(_logprobs_by(self._reference, micro))

    def _gradient(self, own: ServiceLoss, micro: ServiceRows) -> tuple[NDArray[np.float32], float]:
        """The log-probabilities before the step, and the service's loss."""
        rows = micro.rows(**own.columns(micro))
        answer = self._run.gradient(rows, own.name, own.config)
        return micro.trained(answer, rows), loss_sum_of(answer)


def _logprobs_by(run: TrainingRun, micro: ServiceRows) -> NDArray[np.float32]:
    """The log-probabilities of the trained tokens under the run's present weights  # [N]"""
    rows = micro.rows(weights=np.zeros(len(micro.targets), np.float32))
    return micro.trained(run.forward(rows), rows)


def _check_agrees(theirs: float, ours: float) -> None:
    # Were it another loss by the same name, the step would be another one, and every figure of ours about it wrong.
    # What is not finite is told by the step, with the reason.
    if math.isfinite(ours) and not abs(theirs - ours) <= _AGREE * max(1.0, abs(ours)):
        raise WorkError(
            f"the Tinker service computed the loss {theirs:g}, and by its log-probabilities it is {ours:g}",
            field="metrics['loss:sum']",
            fix="install a release of rftd that knows this service's losses",
        )
