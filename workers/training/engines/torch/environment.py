"""What the bits of the torch engine's weights may depend on."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from rftd.ops.releases import release_of


def environment(device: torch.device, *, threads: int) -> dict[str, str]:
    """Releases, threads, device, and the processor: its model decides which kernels the libraries choose."""
    found = {
        "torch": str(torch.__version__),
        "transformers": release_of("transformers"),
        "safetensors": release_of("safetensors"),
        "threads": str(threads),
        "device": device.type,
        "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()).lower(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["cuda"] = str(torch.version.cuda)
    return found


def _processor() -> str:
    """The model of the processor, as the kernel names it; else as Python does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
