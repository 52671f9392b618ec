"""`Drawn`: drawn tokens on their way from the device to the host; `Incoming`: weights on their way to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch

_SPARE: Final = 1.1
"""Incoming weights are copied ahead where so many times their size is free: decoding needs some of it meanwhile."""


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


class Incoming:
    """New weights on their way to a GPU, on a stream of their own: what is decoded meanwhile does not wait for them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def brought(
        self, tensors: Mapping[str, torch.Tensor], check: Callable[[Mapping[str, torch.Tensor]], None]
    ) -> dict[str, torch.Tensor]:
        """Copies on the device, which `check` accepted there; tied tensors stay tied."""
        # Allocated for the stream that decodes, which reads them last: their memory is used again behind that.
        made = {id(each): torch.empty_like(each, device=self._device) for each in tensors.values()}
        self._beside.wait_stream(torch.cuda.default_stream(self._device))
        with torch.inference_mode(), torch.cuda.stream(self._beside):
            for each in {id(each): each for each in tensors.values()}.values():
                made[id(each)].copy_(each)
            found = {name: made[id(each)] for name, each in tensors.items()}
            check(found)
        self._beside.synchronize()
        return found


def has_room(tensors: Mapping[str, torch.Tensor], device: torch.device) -> bool:
    """True if the GPU has room for copies of the tensors; False too if one lies there already."""
    distinct = {id(each): each for each in tensors.values()}.values()
    if any(each.is_cuda for each in distinct):
        return False
    # What torch keeps for later counts as free, though its pieces may be too small: then it gives them back first.
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept > _SPARE * sum(each.nbytes for each in distinct)
