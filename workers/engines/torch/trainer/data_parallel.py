"""`DataParallel`: a learner with complete models on every rank, and the micro-batches of each call divided among the
ranks.

Ranks sum their gradients before any optimizer step, in a fixed order, and therefore take equal steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, Generic

import msgspec
import torch
from torch import Tensor, distributed

from rftd.ops.decoding import msgpack_decoder
from rftd.workers.engines.ranks.collectives import gather_bytes, this_rank
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
"""Function returning the trained parameters, in an equal order on all ranks."""
_BUCKET_NUMBERS: Final = 1 << 24
"""Gradient numbers summed over ranks at once: 64 MiB."""


class SummedGradient:
    """The accumulated gradient of one model, summed over ranks."""

    def __init__(self, own: Gradient, parameters: Parameters, device: torch.device) -> None:
        """Sums the gradients of `own` over all ranks; `parameters` returns the parameters with these gradients."""
        self._own = own
        self._parameters = parameters
        self._device = device

    def clip(self, limit: float) -> float | None:
        """Scales the summed gradient down to the norm `limit`, equally on all ranks; returns the norm before."""
        return self._own.clip(limit)

    def step(self, rate: float) -> None:
        """Takes one optimizer step, equal on all ranks."""
        self._own.step(rate)

    def forget(self) -> None:
        """Sets the accumulated gradient to zero."""
        self._own.forget()

    def add(self, accumulate: Callable[[], list[dict[str, Tensor]]], count: int) -> list[dict[str, Tensor]]:
        """Adds the gradients computed by `accumulate` on every rank to the accumulated one; returns the terms of all
        `count` micro-batches.
        """
        parameters = list(self._parameters())
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        figures = accumulate()
        self._sum(parameters)
        for parameter, earlier in zip(parameters, before, strict=True):
            if earlier is not None:
                parameter.grad = earlier if parameter.grad is None else parameter.grad + earlier
        return self._gather_terms(figures, count)

    def _sum(self, parameters: Sequence[Tensor]) -> None:
        """Sums the gradients over all ranks, several parameters at a time."""
        # A parameter without a gradient on any rank stays so: an optimizer would move it for a gradient of zeros.
        flags = torch.tensor(
            [parameter.grad is not None for parameter in parameters], dtype=torch.uint8, device=self._device
        )
        distributed.all_reduce(flags, distributed.ReduceOp.MAX)
        bucket: list[Tensor] = []
        for parameter, with_gradient in zip(parameters, flags.tolist(), strict=True):
            if not with_gradient:
                continue
            if bucket and sum(grouped.numel() for grouped in bucket) + parameter.numel() > _BUCKET_NUMBERS:
                self._sum_bucket(bucket)
                bucket = []
            bucket.append(parameter)
        self._sum_bucket(bucket)

    def _sum_bucket(self, parameters: Sequence[Tensor]) -> None:
        """Sums the gradients of some parameters over all ranks, as one tensor."""
        if not parameters:
            return
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters])
        distributed.all_reduce(flat)
        for parameter, gradient in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
            parameter.grad = gradient.view_as(parameter).clone()

    def _gather_terms(self, own: Sequence[dict[str, Tensor]], count: int) -> list[dict[str, Tensor]]:
        """Returns the terms of all `count` micro-batches in order; `own` are those computed by this rank."""
        texts = msgspec.msgpack.encode([{name: float(value) for name, value in figures.items()} for figures in own])
        parts = [msgpack_decoder(list[dict[str, float]]).decode(figures) for figures in gather_bytes(texts)]
        ordered = [parts[n % len(parts)][n // len(parts)] for n in range(count)]
        return [
            {name: torch.tensor(value, device=self._device) for name, value in figures.items()} for figures in ordered
        ]


class SharedCritic(SummedGradient, Generic[M]):
    """Implements `ValueLearner` for a critic with a complete copy on every rank."""

    def __init__(self, own: ValueLearner[M], parameters: Parameters, device: torch.device) -> None:
        """Divides the work of the critic `own` among all ranks."""
        super().__init__(own, parameters, device)
        self._critic = own
        self.schedule = own.schedule
        self.value_clip = own.value_clip
        self.grad_clip = own.grad_clip

    def accumulate(self, micro_batches: Sequence[M], loss: ValueLossOver) -> list[dict[str, Tensor]]:
        """Adds the gradients of all micro-batches, each computed by one rank; returns the terms of all."""
        mine = _own_numbers(len(micro_batches))

        def own_loss(at: int, values: Tensor) -> Terms:
            return loss(mine[at], values)

        return self.add(lambda: self._critic.accumulate([micro_batches[n] for n in mine], own_loss), len(micro_batches))


class DataParallel(SummedGradient, Generic[M]):
    """Implements `Learner` over a learner with complete models on every rank."""

    def __init__(self, own: Learner[M], parameters: Parameters, critic_parameters: Parameters | None) -> None:
        """`parameters` returns the trained parameters, in equal order on all ranks; `critic_parameters` likewise the
        critic's.
        """
        super().__init__(own, parameters, own.device)
        self._learner = own
        self.device = own.device
        self.vocabulary_tokens = own.vocabulary_tokens
        self.critic: SharedCritic[M] | None = None
        if own.critic is not None:
            assert critic_parameters is not None
            self.critic = SharedCritic(own.critic, critic_parameters, own.device)

    def pack(self, samples: Sequence[TrainSample], numbers: Sequence[int], aggregation: Aggregation) -> list[M]:
        """Packs all micro-batches on every rank, which costs less than sending them."""
        return self._learner.pack(samples, numbers, aggregation)

    def values(self, micro_batches: Sequence[M], fields: frozenset[PassField]) -> list[TokenValues]:
        """Returns the requested fields of all micro-batches, each computed by one rank."""
        mine = _own_numbers(len(micro_batches))
        own = self._learner.values([micro_batches[n] for n in mine], fields)
        sizes = [len(micro.targets) for micro in micro_batches]
        names = sorted(fields)
        whole = torch.zeros(len(names), sum(sizes), device=self.device)  # [fields, N of all]
        parts = torch.split(whole, sizes, dim=1)
        for number, values in zip(mine, own, strict=True):
            for row, name in enumerate(names):
                parts[number][row] = getattr(values, name)
        # Every number is of one rank, and zero on the others: the sum is exact.
        distributed.all_reduce(whole)
        return [TokenValues(**{name: columns[row] for row, name in enumerate(names)}) for columns in parts]

    def accumulate(
        self, micro_batches: Sequence[M], loss: PolicyLossOver, *, reference: bool
    ) -> list[dict[str, Tensor]]:
        """Adds the gradients of all micro-batches, each computed by one rank; returns the terms of all."""
        mine = _own_numbers(len(micro_batches))

        def own_loss(at: int, values: PolicyValues) -> Terms:
            return loss(mine[at], values)

        def own() -> list[dict[str, Tensor]]:
            return self._learner.accumulate([micro_batches[n] for n in mine], own_loss, reference=reference)

        return self.add(own, len(micro_batches))


def _own_numbers(count: int) -> range:
    """Returns the numbers of the micro-batches computed by this rank, out of `count`."""
    rank, ranks = this_rank()
    return range(rank, count, ranks)
