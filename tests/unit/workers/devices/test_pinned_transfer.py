"""Arrays reach a GPU through pinned memory, and a CPU without a copy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rftd.workers.devices.pinned_transfer import to_device


def test_a_gpu_is_given_pinned_memory_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.Tensor] = []
    sent: list[tuple[torch.Tensor, torch.device, bool]] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.clone())
        return pinned[-1]

    def send(tensor: torch.Tensor, device: torch.device, *, non_blocking: bool) -> torch.Tensor:
        sent.append((tensor, device, non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", send)
    found = to_device(np.arange(5), torch.device("cuda"))
    ((source, device, non_blocking),) = sent
    assert source is pinned[0]
    assert (device.type, non_blocking) == ("cuda", True)
    assert found.tolist() == [0, 1, 2, 3, 4]


def test_a_cpu_shares_the_memory_of_the_array() -> None:
    numbers = np.zeros(3, np.float32)
    found = to_device(numbers, torch.device("cpu"))
    numbers[1] = 7
    assert found.tolist() == [0, 7, 0]
