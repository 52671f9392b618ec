"""`DataParallel`: a learner whose ranks hold everything, and divide the micro-batches of each call among them.

Gradients are added up before any optimizer sees them, in one order on all ranks, so that all take the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, Generic

import msgspec
import torch
from torch import Tensor, distributed

from rftd.ops.decoding import msgpack_decoder
from rftd.workers.engines.ranks.collectives import gathered, this_rank
from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.losses.aggregation import Aggregation
from rftd.workers.learning.stage.learner import (
    Gradient,
    Learner,
    M,
    PolicyLossOver,
    PolicyValues,
    Terms,
    TokenValues,
    ValueLearner,
    ValueLossOver,
)
from rftd.workers.learning.token_advantages.token_advantage import PassField

Parameters = Callable[[], Collection[Tensor]]
_BUCKET_NUMBERS: Final = 1 << 24
"""Numbers of gradients that are added up at once: 64 MiB."""


class SummedGradient:
    """The gradient of one optimizer, summed over ranks."""

    def __init__(self, own: Gradient, parameters: Parameters, device: torch.device) -> None:
        self._own = own
        self._parameters = parameters
        self._device = device

    def clip(self, limit: float) -> float | None:
        """Scales the sum down to the norm `limit`, alike on all ranks; returns the norm before."""
        return self._own.clip(limit)

    def step(self, rate: float) -> None:
        """Takes the step, the same on all ranks."""
        self._own.step(rate)

    def forget(self) -> None:
        """Drops the gradient."""
        self._own.forget()

    def add(self, accumulate: Callable[[], list[dict[str, Tensor]]], count: int) -> list[dict[str, Tensor]]:
        """Adds what the ranks' own micro-batches give to the gradient before; returns the figures of all `count`."""
        parameters = list(self._parameters())
        before = [each.grad for each in parameters]
        for each in parameters:
            each.grad = None
        figures = accumulate()
        self._sum(parameters)
        for each, earlier in zip(parameters, before, strict=True):
            if earlier is not None:
                each.grad = earlier if each.grad is None else each.grad + earlier
        return self._figures(figures, count)

    def _sum(self, parameters: Sequence[Tensor]) -> None:
        # A parameter without a gradient on any rank stays so: an optimizer would move it for a gradient of zeros.
        has = torch.tensor([each.grad is not None for each in parameters], dtype=torch.uint8, device=self._device)
        distributed.all_reduce(has, distributed.ReduceOp.MAX)
        bucket: list[Tensor] = []
        for each, found in zip(parameters, has.tolist(), strict=True):
            if not found:
                continue
            if bucket and sum(one.numel() for one in bucket) + each.numel() > _BUCKET_NUMBERS:
                self._sum_bucket(bucket)
                bucket = []
            bucket.append(each)
        self._sum_bucket(bucket)

    def _sum_bucket(self, parameters: Sequence[Tensor]) -> None:
        if not parameters:
            return
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters])
        distributed.all_reduce(flat)
        for each, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
            each.grad = part.view_as(each).clone()

    def _figures(self, own: Sequence[dict[str, Tensor]], count: int) -> list[dict[str, Tensor]]:
        """The figures of all micro-batches in their order, of which this rank has every N-th."""
        texts = msgspec.msgpack.encode([{name: float(value) for name, value in each.items()} for each in own])
        parts = [msgpack_decoder(list[dict[str, float]]).decode(each) for each in gathered(texts)]
        ordered = [parts[n % len(parts)][n // len(parts)] for n in range(count)]
        return [{name: torch.tensor(value, device=self._device) for name, value in each.items()} for each in ordered]


class SharedCritic(SummedGradient, Generic[M]):
    """Implements `ValueLearner` for a critic that every rank has."""

    def __init__(self, own: ValueLearner[M], parameters: Parameters, device: torch.device) -> None:
        super().__init__(own, parameters, device)
        self._critic = own
        self.schedule = own.schedule
        self.value_clip = own.value_clip
        self.grad_clip = own.grad_clip

    def accumulate(self, micro_batches: Sequence[M], loss: ValueLossOver) -> list[dict[str, Tensor]]:
        """Adds the gradients of all micro-batches; returns the figures of all."""
        mine = _mine(len(micro_batches))

        def own_loss(at: int, values: Tensor) -> Terms:
            return loss(mine[at], values)

        return self.add(lambda: self._critic.accumulate([micro_batches[n] for n in mine], own_loss), len(micro_batches))


class DataParallel(SummedGradient, Generic[M]):
    """Implements `Learner` for a learner that every rank has whole."""

    def __init__(self, own: Learner[M], parameters: Parameters, critic_parameters: Parameters | None) -> None:
        """`parameters` are those that learn, in one order on all ranks; likewise the critic's, if there is one."""
        super().__init__(own, parameters, own.device)
        self._learner = own
        self.device = own.device
        self.vocabulary_tokens = own.vocabulary_tokens
        self.critic: SharedCritic[M] | None = None
        if own.critic is not None:
            assert critic_parameters is not None
            self.critic = SharedCritic(own.critic, critic_parameters, own.device)

    def pack(self, samples: Sequence[TrainSample], numbers: Sequence[int], aggregation: Aggregation) -> list[M]:
        """The micro-batches, of which every rank makes all: packing costs less than sending."""
        return self._learner.pack(samples, numbers, aggregation)

    def values(self, micro_batches: Sequence[M], fields: frozenset[PassField]) -> list[TokenValues]:
        """The asked values of all micro-batches, each computed by one rank."""
        mine = _mine(len(micro_batches))
        found = self._learner.values([micro_batches[n] for n in mine], fields)
        sizes = [len(micro.targets) for micro in micro_batches]
        names = sorted(fields)
        whole = torch.zeros(len(names), sum(sizes), device=self.device)  # [fields, N of all]
        parts = torch.split(whole, sizes, dim=1)
        for number, values in zip(mine, found, strict=True):
            for row, name in enumerate(names):
                parts[number][row] = getattr(values, name)
        # Every number is of one rank, and zero on the others: the sum is exact.
        distributed.all_reduce(whole)
        return [TokenValues(**{name: part[row] for row, name in enumerate(names)}) for part in parts]

    def accumulate(
        self, micro_batches: Sequence[M], loss: PolicyLossOver, *, reference: bool
    ) -> list[dict[str, Tensor]]:
        """Adds the gradients of all micro-batches; returns the figures of all."""
        mine = _mine(len(micro_batches))

        def own_loss(at: int, values: PolicyValues) -> Terms:
            return loss(mine[at], values)

        def own() -> list[dict[str, Tensor]]:
            return self._learner.accumulate([micro_batches[n] for n in mine], own_loss, reference=reference)

        return self.add(own, len(micro_batches))


def _mine(count: int) -> range:
    """The numbers of the micro-batches that this rank computes."""
    rank, ranks = this_rank()
    return range(rank, count, ranks)
