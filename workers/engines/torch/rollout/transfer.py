"""`Drawn`: drawn tokens on their way from the device to the host; `Incoming`: weights on their way to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import torch

_SPARE: Final = 1.1
"""Incoming weights are copied ahead where so many times their size is free: decoding needs some of it meanwhile."""
_PIECE_BYTES: Final = 1 << 24
"""Weights come in such pieces: while a copy from pageable memory is under way, decoding cannot begin a kernel."""
_ALIGNMENT_BYTES: Final = 64


class Drawn:
    """Tokens that were drawn, and their log-probabilities, on their way to the host."""

    def __init__(self, tokens: torch.Tensor, logprobs: torch.Tensor, processed: torch.Tensor | None = None) -> None:
        """Begins the transfer; it runs behind what the device has to do before. None is the same as `logprobs`."""
        self._ready: torch.cuda.Event | None = None
        parts = [tokens, logprobs] if processed is None else [tokens, logprobs, processed]
        if tokens.device.type == "cpu":
            self._parts = parts
            return
        # One copy for all: a token and a float32 are exact in float64.
        stacked = torch.stack([part.double() for part in parts])
        # Pinned, for a copy to other memory would hold up the host until the device has come to it.
        host = torch.empty(stacked.shape, dtype=stacked.dtype, pin_memory=True)
        self._parts = list(host.copy_(stacked, non_blocking=True))
        self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._ready.record()

    def read(self) -> tuple[list[int], list[float], list[float]]:
        """Tokens, log-probabilities and processed ones, once they are here  # [N], [N], [N]"""
        if self._ready is not None:
            self._ready.synchronize()
        tokens = self._parts[0].long().tolist()
        logprobs = self._parts[1].tolist()
        return tokens, logprobs, self._parts[2].tolist() if len(self._parts) > 2 else logprobs


class _Stage:
    """Pinned memory, by which a piece travels, and the event after which it may be written again."""

    def __init__(self) -> None:
        self.memory = torch.empty(_PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
        self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]


class Incoming:
    """New weights on their way to a GPU, on a stream of their own: what is decoded meanwhile does not wait for them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stages = [_Stage(), _Stage()]
        """In turns: one is written while the other is copied."""

    def brought(
        self, tensors: Mapping[str, torch.Tensor], check: Callable[[Mapping[str, torch.Tensor]], None]
    ) -> dict[str, torch.Tensor]:
        """Copies on the device, which `check` accepted there; tied tensors stay tied."""
        distinct = {id(each): each for each in tensors.values()}
        sizes = [each.nbytes + -each.nbytes % _ALIGNMENT_BYTES for each in distinct.values()]
        # One block: asking the driver for memory hundreds of times holds up who decodes. Allocated for the stream that
        # decodes, which reads it last: it is used again behind that.
        block = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        self._beside.wait_stream(torch.cuda.default_stream(self._device))
        made: dict[int, torch.Tensor] = {}
        with torch.inference_mode(), torch.cuda.stream(self._beside):
            for part, (key, each) in zip(torch.split(block, sizes), distinct.items(), strict=True):
                there = part[: each.nbytes]
                self._copy(there, each.contiguous().reshape(-1).view(torch.uint8))
                made[key] = there.view(each.dtype).view(each.shape)
            found = {name: made[id(each)] for name, each in tensors.items()}
            check(found)
        self._beside.synchronize()
        return found

    @contextmanager
    def beside(self, size_bytes: int) -> Iterator[None]:
        """Computes on the stream of its own until the context ends, and returns once all of that is done.

        It begins behind what decodes: the last weights were read by then, whose memory is used again. So much memory is
        asked for at once, of which torch gives the context its pieces: asking the driver hundreds of times holds up who
        decodes. Raises OutOfMemoryError.
        """
        self._beside.wait_stream(torch.cuda.default_stream(self._device))
        with torch.cuda.stream(self._beside):
            torch.empty(size_bytes, dtype=torch.uint8, device=self._device)
            yield
        self._beside.synchronize()

    def one(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of one tensor on the device, for what is computed `beside`."""
        there = torch.empty(tensor.nbytes, dtype=torch.uint8, device=self._device)
        self._copy(there, tensor.contiguous().reshape(-1).view(torch.uint8))
        return there.view(tensor.dtype).view(tensor.shape)

    def _copy(self, there: torch.Tensor, here: torch.Tensor) -> None:
        """Copies bytes to the device by way of pinned memory."""
        for target, source in zip(torch.split(there, _PIECE_BYTES), torch.split(here, _PIECE_BYTES), strict=True):
            stage = self._stages[0]
            self._stages.reverse()
            stage.copied.synchronize()
            pinned = stage.memory[: len(source)]
            pinned.copy_(source)
            target.copy_(pinned, non_blocking=True)
            stage.copied.record()


def has_room(tensors: Mapping[str, torch.Tensor], device: torch.device) -> bool:
    """True if the GPU has room for copies of the tensors; False too if one lies there already."""
    distinct = {id(each): each for each in tensors.values()}.values()
    if any(each.is_cuda for each in distinct):
        return False
    # What torch keeps for later counts as free, though its pieces may be too small: then it gives them back first.
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept > _SPARE * sum(each.nbytes for each in distinct)
