"""torch's tensors as `TensorBytes`, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import torch

from rftd.workers.weights.tensor_bytes import TensorBytes, Weights

_Key: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], str]
"""A tensor's address, shape, stride and dtype."""
_ALIGNMENT_BYTES: Final = 64
"""Copies of tensors on the host begin at multiples of this within their block."""


def bytes_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, TensorBytes]:
    """Returns the tensors' bytes, without a copy if in C order on the CPU. Tied tensors stay tied."""
    by_key: dict[_Key, TensorBytes] = {}
    converted = {}
    for name, tensor in _on_host(tensors).items():
        key = _key(tensor)
        # Empty tensors all have the address 0, without being tied.
        if tensor.numel() == 0 or key not in by_key:
            by_key[key] = TensorBytes(dtype_name(tensor), tuple(tensor.shape), memory(tensor))
        converted[name] = by_key[key]
    return converted


def tensors_of(weights: Weights) -> dict[str, torch.Tensor]:
    """Returns torch's tensors sharing the bytes' memory, for reading only; tied names share a tensor."""
    converted: dict[int, torch.Tensor] = {}
    return {name: converted.setdefault(id(stored), _tensor(stored)) for name, stored in weights.items()}


def dtype_name(tensor: torch.Tensor) -> str:
    """Returns the name of a tensor's dtype without torch's prefix: `float32`, `bfloat16`, ..."""
    return str(tensor.dtype).removeprefix("torch.")


def memory(tensor: torch.Tensor) -> memoryview:
    """Returns the tensor's bytes in C order, without a copy if already so on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    # By bytes, because numpy has no bfloat16.
    return flat.view(torch.uint8).numpy().data


def _key(tensor: torch.Tensor) -> _Key:
    # Shape and stride too: a view of a part of another tensor begins at an equal address.
    """Returns an identity of a tensor's memory: address, shape, strides and dtype."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), dtype_name(tensor)


def _on_host(tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Returns the tensors, with host copies instead of GPU tensors; the copies share a block, and tied tensors stay
    tied.
    """
    on_gpu = {
        _key(tensor): tensor.detach().contiguous() for tensor in tensors.values() if tensor.is_cuda and tensor.numel()
    }
    if not on_gpu:
        return tensors
    sizes = [tensor.nbytes + -tensor.nbytes % _ALIGNMENT_BYTES for tensor in on_gpu.values()]
    # Pinned: any other memory is copied at a fraction of the bus's speed. One block, because torch rounds each size up
    # to a power of two, and caches the block for the next time.
    block = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
    copies: dict[_Key, torch.Tensor] = {}
    for piece, (key, tensor) in zip(torch.split(block, sizes), on_gpu.items(), strict=True):
        copies[key] = piece[: tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)
    for device in {tensor.device for tensor in on_gpu.values()}:
        torch.cuda.current_stream(device).synchronize()
    return {name: copies.get(_key(tensor), tensor) if tensor.is_cuda else tensor for name, tensor in tensors.items()}


def _tensor(stored: TensorBytes) -> torch.Tensor:
    """Returns a tensor over stored bytes, without a copy."""
    dtype = getattr(torch, stored.dtype)
    if not stored.data.nbytes:
        return torch.empty(stored.shape, dtype=dtype)
    # frombuffer refuses an empty buffer, which is why empty tensors are created above.
    return torch.frombuffer(stored.data, dtype=dtype).reshape(stored.shape)
