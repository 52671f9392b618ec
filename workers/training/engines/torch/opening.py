"""The surroundings of the torch engine when it opens: torch's switches, the device's memory, and what bits depend
on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog
import torch

from rftd.ops.releases import release_of
from rftd.streams.spec import StageSpec
from rftd.workers.devices.device_memory import check_memory
from rftd.workers.training.memory_needs import FIX, held_need, training_needs

log = structlog.get_logger(__name__)

_CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"
_LACKING: Final = "does not have a deterministic implementation"
"""A part of torch's error where a GPU has no kernel whose sums have an order."""


class Determinism:
    """torch's switch of deterministic algorithms, which holds for the whole process, and is put back at the end."""

    def __init__(self) -> None:
        self._before: bool | None = None
        self._lacking = ""

    def begin(self, device: torch.device) -> None:
        """Sets it, for one rank on this device."""
        if device.type == "cuda":
            # Read by cuBLAS when it is first used; without it, it may take another kernel each time.
            os.environ.setdefault(_CUBLAS, ":4096:8")
        # Filling takes a GPU a write of all the memory that a step uses.
        self.set(not self._lacking, fill=device.type == "cpu")

    def set(self, deterministic: bool, *, fill: bool = True) -> None:
        """Sets it; what it was before the first call is remembered.

        `fill`: memory that nobody wrote is NaN instead of anything: it ends in a refused step, not in other weights.
        """
        if self._before is None:
            self._before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Has it off within, for what leaves no trace in the weights."""
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before)

    @property
    def lacks(self) -> bool:
        """True if it turned out that this model or algorithm needs a kernel without a deterministic form."""
        return bool(self._lacking)

    def given_up(self, error: RuntimeError) -> bool:
        """True if the error says that such a kernel is needed; then it is off from now on, and a log line says so."""
        if self._lacking or _LACKING not in str(error):
            return False
        self._lacking = str(error).partition(_LACKING)[0].strip()
        self.set(False)
        log.warning("training.not_deterministic", because=f"torch has no such form of {self._lacking}")
        return True

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
