"""`CpuPlatform`: a CPU as verl's hardware, with gloo between ranks, for tests and laptops.

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
    """Implements verl's platform interface, made for GPUs, on a CPU."""

    @property
    def device_name(self) -> str:
        """torch's name of the device: `cpu`."""
        return "cpu"

    @property
    def vendor_name(self) -> str:
        """The vendor's name for verl: `cpu`."""
        return "cpu"

    @property
    def device_module(self) -> Any:
        """Replacements of the functions of torch.cuda that verl calls in training."""
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
        """True: a CPU is always available."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """True: a CPU is always available."""
        return True

    def current_device(self) -> Any:
        """Returns torch's CPU device."""
        # verl gives it to `Tensor.to`, which takes a device as well as a number.
        return torch.device("cpu")

    def device_count(self) -> int:
        """Returns 1: all processors are one device."""
        return 1

    def set_device(self, device_index: int) -> None:
        """Does nothing: there is only one device."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Does nothing: computations on a CPU are never queued."""

    def manual_seed(self, seed: int) -> None:
        """Seeds torch's generator."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seeds torch's generator, the only one."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Does nothing: torch has no such allocator on a CPU."""

    def empty_cache(self) -> None:
        """Does nothing: torch caches no memory on a CPU."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """Returns no compute capability: a CPU has none."""
        return None, None

    def communication_backend_name(self) -> str:
        """Returns torch.distributed's backend for a CPU: `gloo`."""
        return "gloo"

    def is_ipc_supported(self) -> bool:
        """False: no CUDA memory is shared between processes."""
        return False

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """Does nothing: there is no CUDA profiler."""
        yield

    def profiler_start(self) -> None:
        """Does nothing: there is no CUDA profiler."""

    def profiler_stop(self) -> None:
        """Does nothing: there is no CUDA profiler."""

    def cudart(self) -> None:
        """Returns None: there is no CUDA runtime."""
        return None


@contextmanager
def torch_answers_cpu() -> Iterator[None]:
    """Makes `torch.cuda.current_device` return the CPU within the context, for Megatron, which does not use verl's
    platform.
    """
    device_of_torch = torch.cuda.current_device
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    try:
        yield
    finally:
        torch.cuda.current_device = device_of_torch
