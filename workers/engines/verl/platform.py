"""verl's platform (its choice of hardware), set once in a process, before the import of verl's engines.

verl itself registers CUDA and NPU; `cpu_platform` adds CPUs.
"""

from __future__ import annotations

import os

import torch

from rftd.ops.errors import ConfigError

# verl looks for plug-ins of its own when it is imported: what trains here is what was installed for rftd.
os.environ.setdefault("VERL_USE_EXTERNAL_PLUGINS", "none")
# verl imports Ray, which reports its use unless told not to.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def choose_platform(device: torch.device, *, field: str) -> None:
    """Makes verl compute on the device's kind in this process. Raises ConfigError if another kind was chosen before."""
    from verl.plugin.platform import get_platform, platform_manager, set_platform

    from rftd.workers.engines.verl.cpu_platform import CpuPlatform

    if platform_manager._current_platform is None or (
        # What verl found by itself while it was imported, and no engine of it has used.
        device.type == "cpu" and get_platform().device_name != "cpu" and not torch.cuda.is_available()
    ):
        set_platform(CpuPlatform() if device.type == "cpu" else platform_manager.PlatformCUDA())
    if (found := get_platform().device_name) != device.type:
        raise ConfigError(
            f"verl computes on {found} in this process, but {device.type} is requested",
            field=field,
            fix="leave the device out, or run this trainer in a process of its own",
        )
