"""`Drawn`: drawn tokens being copied from the device to the host; `Incoming`: new weights being copied to a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import torch

_SPARE: Final = 1.1
"""Free memory needed for copying weights in advance, as a multiple of their size: decoding needs some at the same
time.
"""
_PIECE_BYTES: Final = 1 << 24
"""Bytes copied at once: during a copy from pageable memory, decoding cannot launch a kernel."""
_ALIGNMENT_BYTES: Final = 64
"""Alignment of each tensor in the block of new weights."""


class Drawn:
    """Drawn tokens and log-probabilities, being copied to the host."""

    def __init__(self, tokens: torch.Tensor, logprobs: torch.Tensor, processed: torch.Tensor | None = None) -> None:
        """Starts the copy, behind the device's earlier work. `processed` None: equal to `logprobs`."""
        self._ready: torch.cuda.Event | None = None
        parts = [tokens, logprobs] if processed is None else [tokens, logprobs, processed]
        if tokens.device.type == "cpu":
            self._parts = parts
            return
        # One copy for all: a token and a float32 are exact in float64.
        stacked = torch.stack([tensor.double() for tensor in parts])
        # Pinned, because a copy to pageable memory would block the host until the device has reached it.
        host = torch.empty(stacked.shape, dtype=stacked.dtype, pin_memory=True)
        self._parts = list(host.copy_(stacked, non_blocking=True))
        self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._ready.record()

    def read(self) -> tuple[list[int], list[float], list[float]]:
        """Waits for the copy; returns tokens, log-probabilities, and log-probabilities after filters and penalties
        # [N], [N], [N]
        """
        if self._ready is not None:
            self._ready.synchronize()
        tokens = self._parts[0].long().tolist()
        logprobs = self._parts[1].tolist()
        return tokens, logprobs, self._parts[2].tolist() if len(self._parts) > 2 else logprobs


class _Stage:
    """Pinned memory for one piece, and the event after which it may be overwritten."""

    def __init__(self) -> None:
        """Allocates the pinned memory."""
        self.memory = torch.empty(_PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
        self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]


class Incoming:
    """Copies new weights to a GPU on a separate stream, so that decoding does not wait for them."""

    def __init__(self, device: torch.device) -> None:
        """Prepares a separate stream and pinned memory for copies to `device`."""
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stages = [_Stage(), _Stage()]
        """Two stages in turn: one is written while the other is copied."""

    def copy_to_device(
        self, tensors: Mapping[str, torch.Tensor], check: Callable[[Mapping[str, torch.Tensor]], None]
    ) -> dict[str, torch.Tensor]:
        """Copies the tensors to the device, and returns them once `check` accepted them there; tied tensors stay
        tied.
        """
        distinct = {id(tensor): tensor for tensor in tensors.values()}
        sizes = [tensor.nbytes + -tensor.nbytes % _ALIGNMENT_BYTES for tensor in distinct.values()]
        # One block: requesting memory from the driver hundreds of times delays decoding. Allocated for the decoding
        # stream, the last reader, and reused behind its work.
        block = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        self._stream.wait_stream(torch.cuda.default_stream(self._device))
        copies: dict[int, torch.Tensor] = {}
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            for room, (key, tensor) in zip(torch.split(block, sizes), distinct.items(), strict=True):
                target = room[: tensor.nbytes]
                self._copy(target, tensor.contiguous().reshape(-1).view(torch.uint8))
                copies[key] = target.view(tensor.dtype).view(tensor.shape)
            on_device = {name: copies[id(tensor)] for name, tensor in tensors.items()}
            check(on_device)
        self._stream.synchronize()
        return on_device

    @contextmanager
    def beside(self, size_bytes: int) -> Iterator[None]:
        """Runs the block's computations on the separate stream, and waits for them at the end. `size_bytes` is the
        memory they need.

        The work begins behind earlier decoding: the last weights, whose memory is reused, were read by then. All memory
        is requested at once and handed out by torch in pieces: requesting it from the driver hundreds of times delays
        decoding. Raises OutOfMemoryError.
        """
        self._stream.wait_stream(torch.cuda.default_stream(self._device))
        with torch.cuda.stream(self._stream):
            torch.empty(size_bytes, dtype=torch.uint8, device=self._device)
            yield
        self._stream.synchronize()

    def one(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copies one tensor to the device, and returns the copy; only inside the block of `beside`."""
        target = torch.empty(tensor.nbytes, dtype=torch.uint8, device=self._device)
        self._copy(target, tensor.contiguous().reshape(-1).view(torch.uint8))
        return target.view(tensor.dtype).view(tensor.shape)

    def _copy(self, target_bytes: torch.Tensor, source_bytes: torch.Tensor) -> None:
        """Copies bytes to the device through pinned memory."""
        for target, source in zip(
            torch.split(target_bytes, _PIECE_BYTES), torch.split(source_bytes, _PIECE_BYTES), strict=True
        ):
            stage = self._stages[0]
            self._stages.reverse()
            stage.copied.synchronize()
            pinned = stage.memory[: len(source)]
            pinned.copy_(source)
            target.copy_(pinned, non_blocking=True)
            stage.copied.record()


def has_room(tensors: Mapping[str, torch.Tensor], device: torch.device) -> bool:
    """True if the GPU has room for copies of the tensors; False also if any tensor is already on a GPU."""
    distinct = {id(tensor): tensor for tensor in tensors.values()}.values()
    if any(tensor.is_cuda for tensor in distinct):
        return False
    # Memory cached by torch counts as free, even in pieces too small: torch then releases it first.
    cached_bytes = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached_bytes > _SPARE * sum(tensor.nbytes for tensor in distinct)
