"""`Backend`: the interface to one model of a stage. `StageModels`: the models of a stage on one engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from rftd.workers.engines.learner.optimizer import Offloaded, Parameters
from rftd.workers.learning.critic_arguments import CriticArgs
from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.losses.aggregation import Aggregation
from rftd.workers.learning.stage.learner import M, M_contra, Terms

Figure: TypeAlias = Literal["logprobs", "entropies", "entropy_signals", "squares", "values"]
"""A value computed for each trained token by one model: `values` by a critic, all others by a language model."""
LossOver: TypeAlias = Callable[[int, Mapping[str, Tensor]], Terms]
"""Function from a micro-batch's number in the call and the figures of its tokens  # [N] each, with gradient  to the
terms of its loss.
"""


class Backend(Protocol[M_contra]):
    """One model, in this process or spread over ranks; all ranks make equal calls and get equal answers."""

    @property
    def parameters(self) -> Parameters:
        """The parameters to train, by name; empty for a reference or a teacher."""
        ...

    @property
    def offloaded(self) -> Offloaded | None:
        """The model, if parts of it are moved to the host between passes; None if it stays on its device."""
        ...

    @property
    def vocabulary_tokens(self) -> int:
        """Number of the model's token ids."""
        ...

    def forward(self, micro_batches: Sequence[M_contra], figures: frozenset[Figure]) -> list[dict[str, Tensor]]:
        """Returns the figures of each micro-batch's tokens under the current weights, without gradient  # [N] float32
        each
        """
        ...

    def gradients(
        self, micro_batches: Sequence[M_contra], figures: frozenset[Figure], loss: LossOver
    ) -> list[dict[str, Tensor]]:
        """Computes `loss` of each micro-batch, and adds its gradient to the accumulated one; returns each micro-batch's
        terms.
        """
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors of a checkpoint by name, not copied: weights and persistent buffers, or an adapter's
        matrices.
        """
        ...


class StageModels(Protocol[M]):
    """The models of a stage on one engine: the policy is loaded already; `critic` and `teacher` load theirs."""

    @property
    def device(self) -> torch.device:
        """The device of token values and of the loss's other tensors."""
        ...

    @property
    def policy(self) -> Backend[M]:
        """The model under training."""
        ...

    @property
    def critic_arguments(self) -> CriticArgs:
        """The critic's optimizer and bounds."""
        ...

    @property
    def writers(self) -> int:
        """Number of ranks that write a checkpoint at a time; 0: all."""
        ...

    def freeze(self) -> Backend[M]:
        """Returns a frozen copy of the policy's current weights, to be the reference."""
        ...

    def critic(self, folder: Path) -> Backend[M]:
        """Loads a critic with the decoder of the model in `folder`. Raises DataError for a folder without a model."""
        ...

    def teacher(self, folder: Path) -> Backend[M]:
        """Loads a frozen model from `folder`. Raises DataError for a folder without a model, ConfigError for another
        vocabulary than the policy's.
        """
        ...

    def pack(self, samples: Sequence[TrainSample], numbers: Sequence[int], aggregation: Aggregation) -> list[M]:
        """Returns micro-batches for the samples with these `numbers`, each sample in exactly one; a pure function.

        Raises TrainError for a sample with arrays of unequal length.
        """
        ...
