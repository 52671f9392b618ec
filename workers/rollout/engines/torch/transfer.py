"""`Drawn`: drawn tokens on their way from the device to the host."""

from __future__ import annotations

import torch


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
