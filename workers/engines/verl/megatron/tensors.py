"""Megatron's parameters as tensors with transformers' names: cut over the tensor-parallel ranks, in float32.

Megatron keeps queries, keys and values of a group of heads together, and gate and up projection in one tensor. Each
rank has whole groups and equal parts of both projections, so that its part of a fused parameter is made of contiguous
parts of the tensors that transformers knows: these are DTensors, like those of FSDP2.
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


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """A tensor of transformers within a parameter of Megatron's."""

    name: str
    """transformers' name."""
    slot: Tensor
    """The view of the parameter's memory that has this rank's part."""
    parameter: torch.nn.Parameter
    kind: Fusing
    number: int
    """The number of the slot within the parameter."""
    dim: int | None
    """The dimension along which ranks have parts; None: each has it whole."""
    partial_gradient: bool
    """True if each tensor-parallel rank knows only a part of the gradient of what it has whole."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The groups of heads that a rank has, and the ranks."""

    groups: int
    """The groups of heads (keys and values) of this rank."""
    head_rows: int
    sequence_parallel: bool
    output: str
    """The name of the output layer: `lm_head.weight`, or `score.weight` of a critic."""
    mesh: DeviceMesh | None
    """Ranks by their share of the batch, then by their part of each tensor; None: there is one rank."""

    def places(self, module: torch.nn.Module) -> Iterator[TensorSlot]:
        """The tensors of all parameters of a decoder. Raises DataError for one that is not known."""
        for name, parameter in module.named_parameters():
            fused = decoder_names(name)
            if fused is None:
                raise DataError(
                    f"Megatron's parameter {name!r} is no tensor of a decoder that is known here",
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
        """The views of one fused tensor, in the order of its names."""
        if kind == "gate_up":
            return list(fused.chunk(2))
        if kind == "heads":
            groups = fused.view(self.groups, -1, *fused.shape[1:])
            queries = groups.shape[1] - 2 * self.head_rows
            return list(torch.split(groups, [queries, self.head_rows, self.head_rows], dim=1))
        return [fused]


@dataclass(slots=True)
class NamedTensors:
    """The weights of a model by transformers' names, and the way to and from Megatron's parameters."""

    layout: Layout
    places: list[TensorSlot]
    weights: dict[str, torch.nn.Parameter]
    """float32, each a DTensor where there are several ranks."""
    _sums: dict[str, Tensor] = field(default_factory=dict)
    """The gradients of the micro-batches since the last `add_up`."""

    @classmethod
    def of(
        cls, module: torch.nn.Module, layout: Layout, weights: Mapping[str, Tensor], device: torch.device
    ) -> NamedTensors:
        """The weights of a model for a decoder of Megatron's. Raises DataError if they are of another model."""
        places = list(layout.places(module))
        if wrong := sorted({place.name for place in places} ^ weights.keys()):
            raise DataError(
                f"Megatron's decoder and the model's folder differ, beginning with {wrong[0]!r}",
                fix="write trainer.trainer_strategy: fsdp2",
            )
        made: dict[str, torch.nn.Parameter] = {}
        for place in places:
            whole = weights[place.name].detach()
            part = _part(whole, place, layout.mesh)
            if part.numel() != place.slot.numel():
                raise DataError(
                    f"{place.name!r} has {tuple(whole.shape)} numbers, Megatron's part of it "
                    f"{tuple(place.slot.shape)} on each rank",
                    fix="write trainer.trainer_strategy: fsdp2",
                )
            # A copy always: a view would keep the whole tensor in memory, and change the folder's model.
            own = part.to(device=device, dtype=torch.float32, copy=True, memory_format=torch.contiguous_format)
            made[place.name] = torch.nn.Parameter(_spread(own, place.dim, tuple(whole.shape), layout.mesh))
        return cls(layout, places, made)

    @torch.no_grad()
    def fill(self) -> None:
        """Copies the weights into Megatron's parameters."""
        for place in self.places:
            place.slot.copy_(_local(self.weights[place.name]).view(place.slot.shape))

    @torch.no_grad()
    def collect(self) -> None:
        """Takes the gradient of one micro-batch off Megatron's parameters, and adds it to those before in float32."""
        for place in self.places:
            if place.parameter.grad is None:
                continue
            slot = self.layout.slots(place.kind, place.parameter.grad.contiguous())[place.number]
            self._sum_of(place).view(slot.shape).add_(slot)
        for place in self.places:
            place.parameter.grad = None

    @torch.no_grad()
    def add_up(self) -> None:
        """Adds the mean of the gradients that the shares of the batch have collected to those of the weights."""
        mesh = self.layout.mesh
        for place in self.places:
            found = self._sum_of(place)
            weight = self.weights[place.name]
            if mesh is not None:
                if place.partial_gradient:
                    dist.all_reduce(found, group=mesh.get_group("tensor"))
                shares = mesh["share"].size()
                if shares > 1:
                    dist.all_reduce(found, group=mesh.get_group("share"))
                    found /= shares
            if weight.grad is None:
                weight.grad = _spread(found, place.dim, tuple(weight.shape), mesh)
            else:
                _local(weight.grad).add_(found)
        self._sums.clear()

    def drop(self) -> None:
        """Forgets what was collected and not added up: a pass failed in between."""
        self._sums.clear()
        for place in self.places:
            place.parameter.grad = None

    def _sum_of(self, place: TensorSlot) -> Tensor:
        found = self._sums.get(place.name)
        if found is None:
            found = torch.zeros_like(_local(self.weights[place.name]))
            self._sums[place.name] = found
        return found


def _part(whole: Tensor, place: TensorSlot, mesh: DeviceMesh | None) -> Tensor:
    """This rank's part of a tensor that it has whole."""
    if mesh is None or place.dim is None:
        return whole
    ranks = mesh["tensor"].size()
    if whole.shape[place.dim] % ranks:
        raise DataError(
            f"{place.name!r} of shape {tuple(whole.shape)} cannot be cut into {ranks} equal parts",
            fix="choose another trainer.megatron.tensor_model_parallel_size",
        )
    return whole.chunk(ranks, dim=place.dim)[mesh.get_local_rank("tensor")]


def _spread(own: Tensor, dim: int | None, shape: tuple[int, ...], mesh: DeviceMesh | None) -> Tensor:
    if mesh is None:
        return own
    placements: tuple[Placement, ...] = (Replicate(), Replicate() if dim is None else Shard(dim))
    strides = torch.empty(shape, device="meta").stride()
    made: Tensor = DTensor.from_local(own, mesh, placements, run_check=False, shape=torch.Size(shape), stride=strides)
    return made


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
