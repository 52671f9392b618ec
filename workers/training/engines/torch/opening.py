"""The surroundings of the torch engine when it opens: torch's switches, the device's memory, and what bits depend
on."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

import torch

from rftd.ops.releases import release_of
from rftd.streams.spec import StageSpec
from rftd.workers.devices.device_memory import check_memory
from rftd.workers.training.memory_needs import FIX, held_need, training_needs


class Determinism:
    """torch's switch of deterministic algorithms, which holds for the whole process, and is put back at the end."""

    def __init__(self) -> None:
        self._before: bool | None = None

    def set(self, deterministic: bool) -> None:
        """Sets it; what it was before the first call is remembered."""
        if self._before is None:
            self._before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(deterministic)
        # Memory that nobody wrote is then NaN instead of anything: it ends in a refused step, not in other weights.
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]

    def put_back(self) -> None:
        """Sets it to what it was. Idempotent."""
        if self._before is not None:
            torch.use_deterministic_algorithms(self._before)
            self._before = None


def environment(device: torch.device, *, threads: int) -> dict[str, str]:
    """The releases, threads, device and processor: its model decides which kernels the libraries choose."""
    found = {
        "torch": str(torch.__version__),
        "transformers": release_of("transformers"),
        "safetensors": release_of("safetensors"),
        # The number of threads decides how a sum is cut, and so its last bits.
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


def check_training(stages: Iterable[StageSpec], base: Path, device: str) -> None:
    """Returns if the device has room for each stage, one after the other. Raises DeviceMemoryError."""
    for stage in (each for each in stages if each.kind != "explore"):
        needs = [*training_needs(stage, base), held_need(stage, base)]
        check_memory(needs, device, where=str(base), fix=FIX)
