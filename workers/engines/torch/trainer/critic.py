"""`Critic`: the return that is to be expected at each token, learned by a model and an optimizer of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rftd.streams.spec.optimizer import Optimizer
from rftd.workers.engines.torch.trainer import saving
from rftd.workers.engines.torch.trainer.arguments import TorchTrainerArgs
from rftd.workers.engines.torch.trainer.forward import hidden_of
from rftd.workers.engines.torch.trainer.model import decoder_of, load_model
from rftd.workers.engines.torch.trainer.optimizer import make_optimizer, restore_state, state_of, tensors_in
from rftd.workers.engines.torch.trainer.packing import PackedRows
from rftd.workers.learning.stage.learner import ValueLossOver

Precision = Callable[[], AbstractContextManager[object]]
"""What forward passes run in."""


class Critic:
    """Implements `ValueLearner`: a decoder with one number at each place, the value before the token after it."""

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        arguments: TorchTrainerArgs,
        *,
        precision: Precision,
        optimizer: Optimizer,
        trusted: bool,
    ) -> None:
        self._device = device
        self._precision = precision
        self._arguments = arguments
        self._decoder = decoder_of(load_model(folder, device, trust_remote_code=trusted))
        width: int = self._decoder.config.hidden_size
        self._head = torch.nn.Linear(width, 1, bias=False, device=device)
        torch.nn.init.zeros_(self._head.weight)  # at first every return is expected to be zero
        self._schedule = optimizer
        self._optimizer = make_optimizer(optimizer, self._named())

    @property
    def schedule(self) -> Optimizer:
        """Its optimizer, by whose schedule its learning rate goes."""
        return self._schedule

    @property
    def value_clip(self) -> float:
        """`critic_clip`."""
        return self._arguments.critic_clip

    @property
    def grad_clip(self) -> float:
        """`critic_grad_clip`."""
        return self._arguments.critic_grad_clip

    def values(self, batch: PackedRows) -> Tensor:
        """The values before each trained token  # [N] float32"""
        with self._precision():
            found: Tensor = self._head(hidden_of(self._decoder, batch, self._device).to(self._head.weight.dtype))
        return found.squeeze(-1).float()

    def accumulate(self, micro_batches: Sequence[PackedRows], loss: ValueLossOver) -> list[dict[str, Tensor]]:
        """Adds the gradients of a loss of each micro-batch to those before; returns their figures."""
        figures = []
        for number, micro in enumerate(micro_batches):
            value, terms = loss(number, self.values(micro))
            value.backward()  # type: ignore[no-untyped-call]
            figures.append(terms)
        return figures

    def clip(self, limit: float) -> float:
        """Scales the gradient down to the norm `limit`; returns the norm before."""
        return float(torch.nn.utils.clip_grad_norm_(list(self._named().values()), limit))

    def step(self, rate: float) -> None:
        """Takes one step of its optimizer, by the gradient that was accumulated."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()

    def forget(self) -> None:
        """Drops the gradient that was accumulated."""
        self._optimizer.zero_grad(set_to_none=True)

    def kept(self) -> Iterator[Tensor]:
        """The tensors of model, head and optimizer on the device."""
        yield from self._decoder.parameters()
        yield from self._decoder.buffers()
        yield self._head.weight
        yield from tensors_in(self._optimizer)

    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters that learn, in one order."""
        return list(self._named().values())

    def write(self, folder: Path) -> None:
        """Saves weights and optimizer into a checkpoint's `critic`."""
        folder.mkdir(parents=True, exist_ok=True)
        saving.write_tensors(folder / "model.safetensors", self._tensors())
        saving.write_tensors(folder / "optimizer.safetensors", state_of(self._optimizer, self._named()))

    def restore(self, folder: Path) -> None:
        """Takes what `write` saved. Raises DataError if it is missing or of another model."""
        saving.copy_weights(self._tensors(), saving.read_tensors(folder / "model.safetensors"), folder)
        restore_state(self._optimizer, self._named(), saving.read_tensors(folder / "optimizer.safetensors"))

    def _named(self) -> dict[str, torch.nn.Parameter]:
        named: dict[str, Any] = {f"decoder.{name}": value for name, value in self._decoder.named_parameters()}
        return named | {"head.weight": self._head.weight}

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self._named().items()}
