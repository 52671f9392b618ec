"""Tensors of torch as `TensorBytes`, and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rftd.workers.weights.tensor_bytes import TensorBytes, Weights


def bytes_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, TensorBytes]:
    """The tensors' bytes, without a copy of those that lie in C order on the CPU. Tied tensors stay tied."""
    seen: dict[tuple[int, tuple[int, ...], tuple[int, ...], str], TensorBytes] = {}
    found = {}
    for name, tensor in tensors.items():
        # Shape and stride too: a view of a part of another tensor begins at the same address.
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), dtype_name(tensor))
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


def _tensor(each: TensorBytes) -> torch.Tensor:
    dtype = getattr(torch, each.dtype)
    if not each.data.nbytes:
        return torch.empty(each.shape, dtype=dtype)
    # frombuffer refuses an empty buffer, which is why those are made above.
    return torch.frombuffer(each.data, dtype=dtype).reshape(each.shape)
