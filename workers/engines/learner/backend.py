"""`Backend`: one model of a stage, for the stage's learner. `StageModels`: the models of a stage on one engine."""

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
"""A value of a trained token by one model: `values` by a critic, the others by a language model."""
LossOver: TypeAlias = Callable[[int, Mapping[str, Tensor]], Terms]
"""The loss of a micro-batch, named by its number in the call, over its figures  # [N] each, with gradient."""


class Backend(Protocol[M_contra]):
    """One model, in the present process or spread over ranks; all ranks make equal calls and get equal answers."""

    @property
    def parameters(self) -> Parameters:
        """The parameters to train, by name; empty for a reference or a teacher."""
        ...

    @property
    def offloaded(self) -> Offloaded | None:
        """The model's offloading to the host; None for a model on its device at all times."""
        ...

    @property
    def vocabulary_tokens(self) -> int:
        """The number of token ids known to the model."""
        ...

    def forward(self, micro_batches: Sequence[M_contra], figures: frozenset[Figure]) -> list[dict[str, Tensor]]:
        """The figures of each micro-batch's tokens under the present weights, without gradient  # [N] float32 each"""
        ...

    def gradients(
        self, micro_batches: Sequence[M_contra], figures: frozenset[Figure], loss: LossOver
    ) -> list[dict[str, Tensor]]:
        """Adds the gradients of a loss of each micro-batch to those of earlier calls; returns the loss's terms."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """The state for a checkpoint by name, not copied: weights and persistent buffers, or an adapter's numbers."""
        ...


class StageModels(Protocol[M]):
    """The models of a stage on one engine, the policy opened, the others opened on request."""

    @property
    def device(self) -> torch.device:
        """The device of token values and of the loss's other tensors."""
        ...

    @property
    def policy(self) -> Backend[M]:
        """The policy under training."""
        ...

    @property
    def critic_arguments(self) -> CriticArgs:
        """The critic's optimizer and bounds."""
        ...

    @property
    def writers(self) -> int:
        """The number of ranks that write a checkpoint at once; 0: all."""
        ...

    def freeze(self) -> Backend[M]:
        """The policy as of now, for the reference."""
        ...

    def critic(self, folder: Path) -> Backend[M]:
        """A critic with the folder's decoder. Raises DataError for a folder without a model."""
        ...

    def teacher(self, folder: Path) -> Backend[M]:
        """A frozen model of the folder. Raises DataError without a model there, ConfigError for other tokens."""
        ...

    def pack(self, samples: Sequence[TrainSample], numbers: Sequence[int], aggregation: Aggregation) -> list[M]:
        """The samples with these numbers as micro-batches, each sample in exactly one micro-batch; a pure function.

        Raises TrainError for a sample with arrays of unequal length.
        """
        ...
