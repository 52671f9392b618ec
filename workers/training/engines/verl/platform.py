"""verl's idea of the hardware: it is chosen once in a process, before verl's engines are imported.

verl registers CUDA and NPU. `CpuPlatform` is ours: gloo on the processors, for tests and laptops.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from rftd.ops.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

# verl looks for plug-ins of its own when it is imported: what trains here is what was installed for rftd.
os.environ.setdefault("VERL_USE_EXTERNAL_PLUGINS", "none")
# verl imports Ray, which reports its use unless told not to.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def choose_platform(device: torch.device, *, field: str) -> None:
    """Lets verl compute on such a device in this process. Raises ConfigError if it computes on another one already."""
    from verl.plugin.platform import get_platform, platform_manager, set_platform

    if platform_manager._current_platform is None or (
        # What verl found by itself while it was imported, and no engine of it has used.
        device.type == "cpu" and get_platform().device_name != "cpu" and not torch.cuda.is_available()
    ):
        set_platform(_cpu_platform() if device.type == "cpu" else platform_manager.PlatformCUDA())
    if (found := get_platform().device_name) != device.type:
        raise ConfigError(
            f"verl computes on {found} in this process, and {device.type} is asked for",
            field=field,
            fix="leave the device out, or run this trainer in a process of its own",
        )


def _cpu_platform() -> Any:
    from verl.plugin.platform.platform_cuda import PlatformCUDA

    class CpuPlatform(PlatformCUDA):  # type: ignore[misc]
        """The processors, where verl expects a GPU."""

        @property
        def device_name(self) -> str:
            return "cpu"

        @property
        def vendor_name(self) -> str:
            return "cpu"

        @property
        def device_module(self) -> Any:
            # What verl calls of torch.cuda while it trains; memory of a CPU is nobody's to measure or to empty.
            return SimpleNamespace(
                current_device=lambda: torch.device("cpu"),
                empty_cache=lambda: None,
                is_available=lambda: True,
                synchronize=lambda *_: None,
                memory_allocated=lambda *_: 0,
                memory_reserved=lambda *_: 0,
                max_memory_allocated=lambda *_: 0,
                max_memory_reserved=lambda *_: 0,
            )

        def is_available(self) -> bool:
            return True

        def is_platform_available(self, use_smi_check: bool = False) -> bool:
            return True

        def current_device(self) -> Any:
            # verl gives it to `Tensor.to`, which takes a device as well as a number.
            return torch.device("cpu")

        def device_count(self) -> int:
            return 1

        def set_device(self, device_index: int) -> None:
            pass

        def synchronize(self, device_index: int | None = None) -> None:
            pass

        def manual_seed(self, seed: int) -> None:
            torch.manual_seed(seed)

        def manual_seed_all(self, seed: int) -> None:
            torch.manual_seed(seed)

        def set_allocator_settings(self, settings: str) -> None:
            pass

        def empty_cache(self) -> None:
            pass

        def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
            return None, None

        def communication_backend_name(self) -> str:
            return "gloo"

        def is_ipc_supported(self) -> bool:
            return False

        @contextmanager
        def nvtx_range(self, msg: str) -> Iterator[None]:
            yield

        def profiler_start(self) -> None:
            pass

        def profiler_stop(self) -> None:
            pass

        def cudart(self) -> None:
            return None

    return CpuPlatform()
