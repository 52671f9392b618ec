"""`CpuPlatform`: the processors as verl's hardware, with gloo between ranks, for tests and laptops.

Import the module where verl is installed, before verl's engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from verl.plugin.platform.platform_cuda import PlatformCUDA


class CpuPlatform(PlatformCUDA):  # type: ignore[misc]
    """The processors, where verl expects a GPU."""

    @property
    def device_name(self) -> str:
        """`cpu`."""
        return "cpu"

    @property
    def vendor_name(self) -> str:
        """`cpu`."""
        return "cpu"

    @property
    def device_module(self) -> Any:
        """The functions of torch.cuda called by verl in training."""
        # What verl calls of torch.cuda while it trains; memory of a CPU is nobody's to measure or to empty.
        return SimpleNamespace(
            current_device=lambda: torch.device("cpu"),
            empty_cache=lambda: None,
            # None: who asks goes on to seed the generators of each.
            device_count=lambda: 0,
            is_available=lambda: True,
            synchronize=lambda *_: None,
            memory_allocated=lambda *_: 0,
            memory_reserved=lambda *_: 0,
            max_memory_allocated=lambda *_: 0,
            max_memory_reserved=lambda *_: 0,
        )

    def is_available(self) -> bool:
        """True."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """True."""
        return True

    def current_device(self) -> Any:
        """The processors."""
        # verl gives it to `Tensor.to`, which takes a device as well as a number.
        return torch.device("cpu")

    def device_count(self) -> int:
        """One."""
        return 1

    def set_device(self, device_index: int) -> None:
        """There is no choice."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing is queued."""

    def manual_seed(self, seed: int) -> None:
        """Seeds torch."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seeds torch."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """There is no allocator of ours."""

    def empty_cache(self) -> None:
        """There is no cache of ours."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """Unknown."""
        return None, None

    def communication_backend_name(self) -> str:
        """`gloo`."""
        return "gloo"

    def is_ipc_supported(self) -> bool:
        """False."""
        return False

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """Nothing is profiled."""
        yield

    def profiler_start(self) -> None:
        """Nothing is profiled."""

    def profiler_stop(self) -> None:
        """Nothing is profiled."""

    def cudart(self) -> None:
        """None."""
        return None


@contextmanager
def torch_answers_cpu() -> Iterator[None]:
    """Has torch name the CPU as the current device, for Megatron asks torch and not verl."""
    device_of_torch = torch.cuda.current_device
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    try:
        yield
    finally:
        torch.cuda.current_device = device_of_torch
