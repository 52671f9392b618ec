"""Messages of torch's ranks beside tensors: who they are, texts, and whether one of them has failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import distributed

from rftd.ops.errors import DataError


def this_rank() -> tuple[int, int]:
    """The number of this rank, and how many there are; without torch.distributed it is one alone."""
    if not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def gathered(data: bytes, *, group: distributed.ProcessGroup | None = None) -> list[bytes]:
    """The bytes of all ranks, or of those in `group`, by rank. A collective."""
    # Not all_gather_object, which pickles.
    if not distributed.is_initialized():
        return [data]
    ranks = distributed.get_world_size(group)
    if ranks == 1:
        return [data]
    device = _device(group)
    size = torch.tensor([len(data)], dtype=torch.int64, device=device)
    sizes = [torch.zeros_like(size) for _ in range(ranks)]
    distributed.all_gather(sizes, size, group=group)
    lengths = [int(length) for length in sizes]
    # One more than none: an empty tensor is no message.
    padded = torch.zeros(max(lengths) + 1, dtype=torch.uint8)
    if data:
        padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    padded = padded.to(device)
    parts = [torch.zeros_like(padded) for _ in range(ranks)]
    distributed.all_gather(parts, padded, group=group)
    return [bytes(part[:length].cpu().numpy()) for part, length in zip(parts, lengths, strict=True)]


def at_first(like: torch.Tensor, source: int) -> torch.Tensor:
    """The tensor that rank `source` has, on the first rank; of the others each gives back what it gave.

    Rank `source` and the first call it, with tensors of one shape and dtype.
    """
    rank, _ = this_rank()
    if source == 0:
        return like
    moved = like.contiguous().to(_device())
    if rank == 0:
        distributed.recv(moved, source)
    else:
        distributed.send(moved, 0)
    return moved


@contextmanager
def together() -> Iterator[None]:
    """A piece of reading that has no collective within: a DataError of one rank is raised on all of them.

    Else one rank would go on, or wait for ever, while another has none of what was read.
    """
    found: DataError | None = None
    try:
        yield
    except DataError as error:
        found = error
    failed = [rank for rank, each in enumerate(gathered(b"x" if found else b"")) if each]
    if found is not None:
        raise found
    if failed:
        raise DataError(
            f"rank {failed[0]} cannot read its part of the checkpoint", fix="resume from an earlier checkpoint"
        )


def _device(group: distributed.ProcessGroup | None = None) -> torch.device:
    # NCCL sends tensors on its device, gloo tensors on the host.
    if distributed.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
