"""Tensors of torch as `TensorBytes`, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import torch

from rftd.workers.weights.tensor_bytes import TensorBytes, Weights

_Key: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], str]
"""A tensor's address, shape, stride and dtype."""
_ALIGNMENT_BYTES: Final = 64


def bytes_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, TensorBytes]:
    """The tensors' bytes, without a copy of those that lie in C order on the CPU. Tied tensors stay tied."""
    seen: dict[_Key, TensorBytes] = {}
    found = {}
    for name, tensor in _on_host(tensors).items():
        key = _key(tensor)
        # Empty tensors all have the address 0, and are not tied for that.
        if tensor.numel() == 0 or key not in seen:
            seen[key] = TensorBytes(dtype_name(tensor), tuple(tensor.shape), memory(tensor))
        found[name] = seen[key]
    return found


def tensors_of(weights: Weights) -> dict[str, torch.Tensor]:
    """Tensors over the same memory, to be read only; tied names share one tensor."""
    made: dict[int, torch.Tensor] = {}
    return {name: made.setdefault(id(each), _tensor(each)) for name, each in weights.items()}


def dtype_name(tensor: torch.Tensor) -> str:
    """`float32`, `bfloat16`, ..."""
    return str(tensor.dtype).removeprefix("torch.")


def memory(tensor: torch.Tensor) -> memoryview:
    """The tensor's bytes in C order, without a copy where it already lies so on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    # By bytes, for numpy has no bfloat16.
    return flat.view(torch.uint8).numpy().data


def _key(tensor: torch.Tensor) -> _Key:
    # Shape and stride too: a view of a part of another tensor begins at the same address.
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), dtype_name(tensor)


def _on_host(tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """The tensors, with copies in place of those of a GPU; the copies share one block, and tied ones stay tied."""
    there = {_key(each): each.detach().contiguous() for each in tensors.values() if each.is_cuda and each.numel()}
    if not there:
        return tensors
    sizes = [each.nbytes + -each.nbytes % _ALIGNMENT_BYTES for each in there.values()]
    # Pinned: any other memory is copied at a fraction of the bus's speed. One block, for torch rounds the size of each
    # up to a power of two. It keeps them for the next time.
    block = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
    made: dict[_Key, torch.Tensor] = {}
    for part, (key, each) in zip(torch.split(block, sizes), there.items(), strict=True):
        made[key] = part[: each.nbytes].view(each.dtype).view(each.shape).copy_(each, non_blocking=True)
    for device in {each.device for each in there.values()}:
        torch.cuda.current_stream(device).synchronize()
    return {name: made.get(_key(each), each) if each.is_cuda else each for name, each in tensors.items()}


def _tensor(each: TensorBytes) -> torch.Tensor:
    dtype = getattr(torch, each.dtype)
    if not each.data.nbytes:
        return torch.empty(each.shape, dtype=dtype)
    # frombuffer refuses an empty buffer, which is why those are made above.
    return torch.frombuffer(each.data, dtype=dtype).reshape(each.shape)
