"""Messages between torch's ranks other than tensors: their numbers, bytes, and failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import distributed

from rftd.ops.errors import DataError


def this_rank() -> tuple[int, int]:
    """Returns the number of this rank and the number of ranks; (0, 1) without torch.distributed."""
    if not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def gather_bytes(payload: bytes, *, group: distributed.ProcessGroup | None = None) -> list[bytes]:
    """Collects bytes from all ranks (or the ranks of `group`), in their order; all must call at the same time."""
    # Not all_gather_object, which pickles.
    if not distributed.is_initialized():
        return [payload]
    ranks = distributed.get_world_size(group)
    if ranks == 1:
        return [payload]
    device = _device(group)
    size = torch.tensor([len(payload)], dtype=torch.int64, device=device)
    sizes = [torch.zeros_like(size) for _ in range(ranks)]
    distributed.all_gather(sizes, size, group=group)
    lengths = [int(length) for length in sizes]
    # At least one element: an empty tensor cannot be sent.
    padded = torch.zeros(max(lengths) + 1, dtype=torch.uint8)
    if payload:
        padded[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    padded = padded.to(device)
    all_received = [torch.zeros_like(padded) for _ in range(ranks)]
    distributed.all_gather(all_received, padded, group=group)
    return [bytes(received[:length].cpu().numpy()) for received, length in zip(all_received, lengths, strict=True)]


def move_to_first(tensor: torch.Tensor, source: int) -> torch.Tensor:
    """Moves the tensor of rank `source` to rank 0, where it is returned; the sending rank gets its argument back.

    Called by rank `source` and rank 0 only, with tensors of one shape and dtype.
    """
    rank, _ = this_rank()
    if source == 0:
        return tensor
    moved = tensor.contiguous().to(_device())
    if rank == 0:
        distributed.recv(moved, source)
    else:
        distributed.send(moved, 0)
    return moved


@contextmanager
def raise_on_all_ranks() -> Iterator[None]:
    """Raises a DataError of any rank on all ranks at the end of the block; the block itself must not call collectives.

    Otherwise one rank would continue, or wait for ever, while another has no data.
    """
    own_error: DataError | None = None
    try:
        yield
    except DataError as error:
        own_error = error
    failed = [rank for rank, failure in enumerate(gather_bytes(b"x" if own_error else b"")) if failure]
    if own_error is not None:
        raise own_error
    if failed:
        raise DataError(
            f"rank {failed[0]} cannot read its part of the checkpoint", fix="resume from an earlier checkpoint"
        )


def _device(group: distributed.ProcessGroup | None = None) -> torch.device:
    """Returns the device whose tensors the group's backend sends."""
    # NCCL sends tensors on its device, gloo tensors on the host.
    if distributed.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
