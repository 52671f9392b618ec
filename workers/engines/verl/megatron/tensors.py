"""Megatron's parameters as tensors with transformers' names: divided over the tensor-parallel ranks, in float32.

Megatron stores queries, keys and values of a group of heads together, and gate and up projection in one tensor. Each
rank has complete groups and equal parts of both projections: a rank's part of a fused parameter consists of contiguous
parts of transformers' tensors, stored as DTensors like those of FSDP2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from rftd.ops.errors import DataError
from rftd.workers.conversion.megatron import Fusing, decoder_names

_OUTPUT: Final = "output_layer.weight"
"""Megatron's name of the output layer's weight."""


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """Position of one transformers tensor within a parameter of Megatron's."""

    name: str
    """transformers' name of the tensor."""
    slot: Tensor
    """View of the parameter's memory with this rank's part of the tensor."""
    parameter: torch.nn.Parameter
    """Parameter of Megatron's."""
    kind: Fusing
    """How the parameter fuses several tensors."""
    number: int
    """Number of the tensor within the parameter, in Megatron's order."""
    dim: int | None
    """Dimension along which the tensor is divided over ranks; None: every rank has all of it."""
    partial_gradient: bool
    """True if an undivided tensor has only a part of its gradient on each tensor-parallel rank, to be summed."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a decoder's parameters are divided over ranks and fused."""

    groups: int
    """Number of key-value head groups on this rank."""
    head_rows: int
    """Rows of one head."""
    sequence_parallel: bool
    """True if the positions of a text are divided over the tensor-parallel ranks."""
    output: str
    """Name of the output layer's weight: `lm_head.weight`, or `score.weight` of a critic."""
    mesh: DeviceMesh | None
    """The ranks by their share of the batch and their part of each tensor; None for a single rank."""

    def places(self, module: torch.nn.Module) -> Iterator[TensorSlot]:
        """Yields the slot of each transformers tensor in a decoder's parameters. Raises DataError for an unknown
        parameter.
        """
        for name, parameter in module.named_parameters():
            fused = decoder_names(name)
            if fused is None:
                raise DataError(
                    f"Megatron's parameter {name!r} is not a tensor of a supported decoder",
                    fix="write trainer.trainer_strategy: fsdp2",
                )
            cut = getattr(parameter, "tensor_model_parallel", False)
            per_head = "q_layernorm" in name or "k_layernorm" in name
            for number, slot in enumerate(self.slots(fused.kind, parameter.detach())):
                yield TensorSlot(
                    name=self.output if name == _OUTPUT else fused.names[number],
                    slot=slot,
                    parameter=parameter,
                    kind=fused.kind,
                    number=number,
                    dim=getattr(parameter, "partition_dim", None) if cut else None,
                    partial_gradient=not cut and (self.sequence_parallel or per_head),
                )

    def slots(self, kind: Fusing, fused: Tensor) -> list[Tensor]:
        """Returns the views of the tensors in one fused tensor, in the order of their names."""
        if kind == "gate_up":
            return list(fused.chunk(2))
        if kind == "heads":
            groups = fused.view(self.groups, -1, *fused.shape[1:])
            queries = groups.shape[1] - 2 * self.head_rows
            return list(torch.split(groups, [queries, self.head_rows, self.head_rows], dim=1))
        return [fused]


@dataclass(slots=True)
class NamedTensors:
    """The weights of a model by transformers' names, with copies to and from Megatron's parameters."""

    layout: Layout
    """Division of the parameters over ranks."""
    places: list[TensorSlot]
    """Slot of each tensor."""
    weights: dict[str, torch.nn.Parameter]
    """The weights in float32, by name; DTensors on several ranks."""
    _sums: dict[str, Tensor] = field(default_factory=dict)
    """Gradients of the micro-batches since the last `add_up`."""

    @classmethod
    def of(
        cls, module: torch.nn.Module, layout: Layout, weights: Mapping[str, Tensor], device: torch.device
    ) -> NamedTensors:
        """Creates the named weights of a decoder from complete `weights`. Raises DataError for weights of another
        model.
        """
        places = list(layout.places(module))
        if wrong := sorted({slot.name for slot in places} ^ weights.keys()):
            raise DataError(
                f"Megatron's decoder and the model's folder differ, beginning with {wrong[0]!r}",
                fix="write trainer.trainer_strategy: fsdp2",
            )
        weights_by_name: dict[str, torch.nn.Parameter] = {}
        for slot in places:
            whole = weights[slot.name].detach()
            own_rows = _part(whole, slot, layout.mesh)
            if own_rows.numel() != slot.slot.numel():
                raise DataError(
                    f"{slot.name!r} has {tuple(whole.shape)} numbers, Megatron's part of it "
                    f"{tuple(slot.slot.shape)} on each rank",
                    fix="write trainer.trainer_strategy: fsdp2",
                )
            # A copy always: a view would keep the whole tensor in memory, and change the folder's model.
            copied = own_rows.to(device=device, dtype=torch.float32, copy=True, memory_format=torch.contiguous_format)
            weights_by_name[slot.name] = torch.nn.Parameter(_spread(copied, slot.dim, tuple(whole.shape), layout.mesh))
        return cls(layout, places, weights_by_name)

    @torch.no_grad()
    def fill(self) -> None:
        """Copies the weights into Megatron's parameters."""
        for slot in self.places:
            slot.slot.copy_(_local(self.weights[slot.name]).view(slot.slot.shape))

    @torch.no_grad()
    def collect(self) -> None:
        """Moves one micro-batch's gradients from Megatron's parameters to the sums in float32."""
        for slot in self.places:
            if slot.parameter.grad is None:
                continue
            gradient = self.layout.slots(slot.kind, slot.parameter.grad.contiguous())[slot.number]
            self._sum_of(slot).view(gradient.shape).add_(gradient)
        for slot in self.places:
            slot.parameter.grad = None

    @torch.no_grad()
    def add_up(self) -> None:
        """Averages the collected gradients over the shares of the batch, and adds them to the weights' gradients."""
        mesh = self.layout.mesh
        for slot in self.places:
            gradient = self._sum_of(slot)
            weight = self.weights[slot.name]
            if mesh is not None:
                if slot.partial_gradient:
                    dist.all_reduce(gradient, group=mesh.get_group("tensor"))
                shares = mesh["share"].size()
                if shares > 1:
                    dist.all_reduce(gradient, group=mesh.get_group("share"))
                    gradient /= shares
            if weight.grad is None:
                weight.grad = _spread(gradient, slot.dim, tuple(weight.shape), mesh)
            else:
                _local(weight.grad).add_(gradient)
        self._sums.clear()

    def drop(self) -> None:
        """Discards the gradients collected in a failed pass."""
        self._sums.clear()
        for slot in self.places:
            slot.parameter.grad = None

    def _sum_of(self, slot: TensorSlot) -> Tensor:
        """Returns the sum of a tensor's gradients since the last `add_up`; zeros at first."""
        gradient = self._sums.get(slot.name)
        if gradient is None:
            gradient = torch.zeros_like(_local(self.weights[slot.name]))
            self._sums[slot.name] = gradient
        return gradient


def _part(whole: Tensor, slot: TensorSlot, mesh: DeviceMesh | None) -> Tensor:
    """Returns this rank's part of a complete tensor."""
    if mesh is None or slot.dim is None:
        return whole
    ranks = mesh["tensor"].size()
    if whole.shape[slot.dim] % ranks:
        raise DataError(
            f"{slot.name!r} of shape {tuple(whole.shape)} cannot be cut into {ranks} equal parts",
            fix="choose another trainer.megatron.tensor_model_parallel_size",
        )
    return whole.chunk(ranks, dim=slot.dim)[mesh.get_local_rank("tensor")]


def _spread(own: Tensor, dim: int | None, shape: tuple[int, ...], mesh: DeviceMesh | None) -> Tensor:
    """Returns this rank's part as a DTensor of the complete `shape`; unchanged on a single rank."""
    if mesh is None:
        return own
    placements: tuple[Placement, ...] = (Replicate(), Replicate() if dim is None else Shard(dim))
    strides = torch.empty(shape, device="meta").stride()
    tensor: Tensor = DTensor.from_local(own, mesh, placements, run_check=False, shape=torch.Size(shape), stride=strides)
    return tensor


def _local(tensor: Tensor) -> Tensor:
    """Returns this rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
