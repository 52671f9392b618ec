"""`Critic`: the return that is to be expected at each token, learned by a model and an optimizer of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rftd.streams.spec import OptimizerSpec
from rftd.workers.devices.pinned_transfer import to_device
from rftd.workers.training.engines.torch import saving
from rftd.workers.training.engines.torch.arguments import TorchTrainerArgs
from rftd.workers.training.engines.torch.forward import Passed, hidden_of
from rftd.workers.training.engines.torch.model import decoder_of, load_model
from rftd.workers.training.engines.torch.optimizer import make_optimizer, restore_state, state_of, tensors_in
from rftd.workers.training.engines.torch.packing import MicroBatch


class Critic:
    """A decoder with one number at each place: the value before the token that the place predicts."""

    def __init__(
        self, folder: Path, device: torch.device, arguments: TorchTrainerArgs, *, decay_all: bool, trusted: bool
    ) -> None:
        self._device = device
        self._arguments = arguments
        self._decoder = decoder_of(load_model(folder, device, trust_remote_code=trusted))
        width: int = self._decoder.config.hidden_size
        self._head = torch.nn.Linear(width, 1, bias=False, device=device)
        torch.nn.init.zeros_(self._head.weight)  # at first every return is expected to be zero
        self._optimizer = make_optimizer(
            OptimizerSpec(lr=arguments.critic_lr, weight_decay=0.01, decay_all=decay_all), self._named()
        )

    @torch.no_grad()
    def values(self, batch: MicroBatch) -> Tensor:
        """The values before each trained token, without a gradient  # [N] float32"""
        return self._values(batch)

    def accumulate(self, batches: Sequence[MicroBatch], passed: Sequence[Passed]) -> dict[str, float]:
        """The gradient of the clipped value loss, summed over micro-batches; clipped itself at the end.

        Half the mean of max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2): Schulman et al. 2017's reference code.
        """
        figures = torch.zeros(3, device=self._device)
        for batch, part in zip(batches, passed, strict=True):
            assert part.values is not None and part.returns is not None
            values = self._values(batch)
            returns = part.returns
            # Around the values of before the batch, whichever step this is: several small steps must not add up to a
            # large one.
            near = values.clamp(part.values - self._arguments.critic_clip, part.values + self._arguments.critic_clip)
            plain = (values - returns).square()
            bounded = (near - returns).square()
            weights = to_device(batch.weights.mean, self._device)
            loss = 0.5 * (plain.maximum(bounded) * weights).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            clipped = (bounded > plain).to(weights.dtype)
            # Kept on the device: a transfer for each micro-batch would wait for its kernels.
            figures += torch.stack([loss.detach(), (clipped * weights).sum(), (values.detach() * weights).sum()])
        parameters = list(self._named().values())
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._arguments.critic_grad_clip)
        loss_value, clip_share, mean = figures.tolist()
        return {
            "critic/vf_loss": loss_value,
            "critic/vf_clipfrac": clip_share,
            "critic/vpred_mean": mean,
            "critic/grad_norm": float(norm),
            "critic/lr": self._arguments.critic_lr,
        }

    def step(self) -> None:
        """Takes one step of its optimizer, by the gradient that was accumulated."""
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

    def write(self, folder: Path) -> None:
        """Saves weights and optimizer into a checkpoint's `critic`."""
        folder.mkdir(parents=True, exist_ok=True)
        saving.write_tensors(folder / "model.safetensors", self._tensors())
        saving.write_tensors(folder / "optimizer.safetensors", state_of(self._optimizer, self._named()))

    def restore(self, folder: Path) -> None:
        """Takes what `write` saved. Raises DataError if it is missing or of another model."""
        saving.copy_weights(self._tensors(), saving.read_tensors(folder / "model.safetensors"), folder)
        restore_state(self._optimizer, self._named(), saving.read_tensors(folder / "optimizer.safetensors"))

    def _values(self, batch: MicroBatch) -> Tensor:
        found: Tensor = self._head(hidden_of(self._decoder, batch, self._device).to(self._head.weight.dtype))
        return found.squeeze(-1).float()

    def _named(self) -> dict[str, torch.nn.Parameter]:
        named: dict[str, Any] = {f"decoder.{name}": value for name, value in self._decoder.named_parameters()}
        return named | {"head.weight": self._head.weight}

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self._named().items()}
